"""What UCX, MPI libraries, Gloo and PyTorch print when something is wrong.

Sources: texts of UCX 1.20 and MPICH 5.0, Gloo and PyTorch 2.13 as they print them here; of Open MPI and of RDMA, which
no machine of ours has, as they stand in public on GitHub, numbers beside each.
"""

from fabricd.findings.joblog.message import Message
from fabricd.model.finding import Severity

UCX_MESSAGES = (
    Message(
        code="ucx-device",
        texts=("UCX*network device*not available, please use one or more of",),
        severity=Severity.WARNING,
        meaning="UCX_NET_DEVICES names a device that is not here, or may not be opened; UCX goes on with what is left",
        fix='fabricctl doctor (setting-names-nothing, adapters-denied); eval "$(fabricctl env)"',
    ),
    Message(
        code="ucx-transport",
        texts=("UCX*transport*not available, please use one or more of",),
        severity=Severity.WARNING,
        meaning="UCX_TLS names a transport that has no device here, or that this UCX was built without",
        fix="fabricctl doctor, in the job's own container (adapters-denied, adapters-hidden); unset UCX_TLS",
    ),
    Message(
        code="ucx-nothing",
        texts=("UCX*no usable transports/devices",),
        meaning="UCX_TLS and UCX_NET_DEVICES together leave nothing to communicate by",
        fix='unset both; eval "$(fabricctl env)"',
    ),
    Message(  # ucx#3513, #4742, #10738
        code="ucx-unreachable",
        texts=("UCX*no active messages transport to", "UCX*no * transport to *Destination is unreachable"),
        meaning="two ranks have no transport in common: ports in other subnets or fabrics; on one host, memory that "
        "they do not share, or UCX_TLS without a transport through memory",
        fix="fabricctl networks; fabricctl paths A B --explain; UCX_TLS needs sm and self beside a network's transport",
    ),
    Message(  # ucx#2973, #6000, #6669
        code="ucx-timeout",
        texts=("Transport retry count exceeded",),
        meaning="an adapter sent, and the other one did not acknowledge: their ports do not reach each other (another "
        "rail, fabric or VLAN, the wrong GID), a link went down, or packets were lost for long",
        fix="fabricctl paths A/mlx5_0:1 B/mlx5_0:1 --explain; fabricctl watch --past; fabricctl env sets "
        "UCX_NET_DEVICES and UCX_IB_GID_INDEX where they are needed",
    ),
    Message(  # ucx#8229, #8746
        code="ucx-memlock",
        texts=("Please set max locked memory (ulimit -l)", "UCX*ibv_reg_mr*Cannot allocate memory"),
        meaning="the process may lock too little memory to register buffers for RDMA (RLIMIT_MEMLOCK)",
        fix="fabricctl doctor, in the job's own container (memlock-low)",
    ),
    Message(
        code="ucx-shm",
        texts=("Please check that /dev/shm or the directory you specified has more available memory",),
        meaning="too little room in /dev/shm for what the ranks of this host share, or others left much there",
        fix="fabricctl doctor, in the job's own container (shm-small); df /dev/shm",
    ),
    Message(
        code="ucx-connect",
        texts=("UCX*connect(fd=*failed", "UCX*connect(fd=*: "),
        meaning="a rank does not reach the address of another one's interface: one that does not join the hosts, a "
        "firewall, or a link that was just down",
        fix='fabricctl networks; eval "$(fabricctl env)" sets UCX_NET_DEVICES; fabricctl watch --past',
    ),
    Message(
        code="ucx-unused",
        texts=("UCX*unused environment variable",),
        severity=Severity.WARNING,
        meaning="a setting that this UCX does not know: mostly a spelling, or of another version",
        fix="the message says which was probably meant",
    ),
)

MPI_MESSAGES = (
    Message(
        code="mpich-start",
        texts=("Fatal error in internal_Init", "Fatal error in PMPI_Init"),
        meaning="MPICH did not start; the reason stands above, in the lines of UCX or libfabric",
        fix="fabricctl doctor, in the job's own environment (setting-names-nothing)",
    ),
    Message(  # ompi#11063, relion#179
        code="ompi-openib",
        texts=(
            "No OpenFabrics connection schemes reported",
            "There was an error initializing an OpenFabrics device",
            "Module: OpenFabrics (openib)",
        ),
        severity=Severity.NOTE,
        meaning="Open MPI's old InfiniBand transport does not take this adapter; UCX, its successor, may do so",
        fix="mpirun --mca pml ucx --mca btl ^openib, which fails where UCX cannot",
    ),
    Message(  # ompi#6377, #2320
        code="ompi-connect",
        texts=("btl_tcp*connect() to *failed", "Open MPI accepted a TCP connection from what appears to be a"),
        meaning="Open MPI uses all interfaces, and one of them does not join the hosts (docker0, virbr0, management)",
        fix="fabricctl networks says which does: mpirun --mca btl_tcp_if_include 10.1.0.0/24 --mca "
        "oob_tcp_if_include 10.1.0.0/24",
    ),
)

TORCH_MESSAGES = (
    Message(
        code="gloo-interface",
        texts=("Unable to find address for: ",),
        meaning="GLOO_SOCKET_IFNAME names an interface that is not here or has no address; Gloo takes whole names, "
        "without ^ and = as NCCL has them",
        fix='fabricctl doctor (setting-syntax, setting-names-nothing); eval "$(fabricctl env)" sets it',
    ),
    Message(
        code="gloo-loopback",
        texts=("Unable to resolve hostname to a (local) address. Using the loopback address as fallback",),
        severity=Severity.WARNING,
        meaning="the host's own name stands for no address of its own: Gloo listens at the loopback, where no other "
        "host reaches it",
        fix='eval "$(fabricctl env)" on every node sets GLOO_SOCKET_IFNAME; fabricctl doctor (name-loopback)',
    ),
    Message(  # pytorch#8664, #26166
        code="gloo-connect",
        texts=("Gloo connectFullMesh failed", "timed out connecting: SO_ERROR", "gloo*Connect timeout"),
        meaning="a rank does not reach the address at which another one listens: by itself Gloo takes that of the "
        "host's own name, which may be 127.0.1.1, docker0 or management",
        fix='eval "$(fabricctl env)" on every node sets GLOO_SOCKET_IFNAME; fabricctl doctor (name-loopback)',
    ),
    Message(
        code="gloo-peer-gone",
        texts=("gloo*Connection closed by peer", "gloo*Connection reset by peer"),
        severity=Severity.WARNING,
        meaning="another rank ended first, or was cut off",
        fix="look for the first error of that rank; fabric_client.torch names the rank that was lost",
    ),
    Message(
        code="torch-store",
        texts=("The client socket has timed out after", "The client socket has failed to connect to"),
        meaning="a rank does not reach MASTER_ADDR:MASTER_PORT, where ranks meet: another host's name, a firewall, or "
        "rank 0 has not started",
        fix="getent hosts $MASTER_ADDR on each node; fabricctl meet agrees on an address that all reach",
    ),
    Message(
        code="torch-missing-ranks",
        texts=("waiting for clients*clients joined",),
        meaning="not all ranks came to the meeting in time",
        fix="find those that did not start; fabric_client names them: 'waits for rank 4-7 of 8'",
    ),
    Message(  # pytorch#118369, Megatron-LM#1207
        code="torch-watchdog",
        texts=("Watchdog caught collective operation timeout",),
        meaning="a rank did not come to the same collective, or the network stood still",
        fix="fabricctl read-log on what all ranks printed says which rank is missing: log-rank-behind; "
        "log-all-wait where none is",
    ),
    Message(
        code="torch-nccl",
        texts=(
            "ncclSystemError: ",
            "ncclRemoteError: ",
            "ncclInternalError: ",
            "ncclInvalidUsage: ",
            "ncclUnhandledCudaError: ",
            "unhandled system error",
            "unhandled cuda error",
        ),
        severity=Severity.WARNING,
        meaning="NCCL failed, and this is not its reason, which stands in the first line of it with WARN",
        fix="NCCL_DEBUG=INFO, and fabricctl read-log on what all ranks print",
    ),
)
