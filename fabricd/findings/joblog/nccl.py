"""What NCCL prints when something is wrong.

Sources: the texts are those of NCCL 2.7 to 2.32, from the library's strings and from published logs. Meanings are those
that NCCL's maintainers give in public (NVIDIA/nccl on GitHub, numbers beside each), and the hints of NCCL 2.32 itself.
"""

from fabricd.findings.joblog.message import Message
from fabricd.model.finding import Severity

_FABRIC_MANAGER = (
    "fabricctl doctor (fabric-not-ready, fabric-failed, fabric-unhealthy); systemctl status nvidia-fabricmanager"
)
_IN_THE_JOB = "in the job's own container"

NCCL_MESSAGES = (
    Message(  # nccl#426, #905, #1814; ibv_wc_status 12
        code="nccl-ib-timeout",
        texts=(
            "Got completion*error 12, ",
            "Got completion*status=12 ",
            "Got completion*RETRY_EXC_ERR(12)",
        ),
        meaning="an adapter sent, and the other one did not acknowledge: at a job's start their ports do not reach "
        "each other (another rail, fabric or VLAN, the wrong GID); later a link went down, or packets were lost long",
        fix="at the start: fabricctl networks; fabricctl paths A/mlx5_0:1 B/mlx5_0:1 --explain; "
        'eval "$(fabricctl env)" sets adapters and GID. Later: fabricctl watch --past; fabricctl doctor',
    ),
    Message(  # nccl#214, #304, #707, #928; ibv_wc_status 4; NCCL's own hint
        code="nccl-ib-protection",
        texts=(
            "Got completion*error 4, ",
            "Got completion*status=4 ",
            "Got completion*LOC_PROT_ERR(4)",
            "local access violation work queue error",
        ),
        meaning="an adapter was refused memory; with GPUs that is mostly Access Control Services of PCIe bridges, or "
        "an IOMMU that translates",
        fix="fabricctl doctor (acs-redirects, iommu-translates); NCCL_NET_GDR_LEVEL=LOC shows whether it is that",
    ),
    Message(  # ibv_wc_status 5
        code="nccl-ib-flushed",
        texts=(
            "Got completion*error 5, ",
            "Got completion*status=5 ",
            "Got completion*WR_FLUSH_ERR(5)",
        ),
        severity=Severity.NOTE,
        meaning="what was under way on a connection that had failed before was given up",
        fix="look for the first error of that connection, here or in the log of the other host",
    ),
    Message(
        code="nccl-ib-failed",
        texts=("NET/IB*Got completion*with ",),
        meaning="an RDMA operation failed, and the connection with it",
        fix="the number is an ibv_wc_status; fabricctl paths A/mlx5_0:1 B/mlx5_0:1 --explain; fabricctl doctor",
    ),
    Message(  # nccl#2013, nccl-tests#227, #185; NCCL's own hints
        code="nccl-qp-unreachable",
        texts=(
            "ibv_modify_qp failed*Connection timed out",
            "ibv_modify_qp failed*Network is unreachable",
            "ibv_modify_qp failed*No route to host",
        ),
        meaning="an adapter found no way to the address of the other one: they are on rails that do not reach each "
        "other, or the address is that of another network",
        fix='fabricctl networks (rails); eval "$(fabricctl env)" sets NCCL_CROSS_NIC=0 and NCCL_IB_HCA where they '
        "are needed",
    ),
    Message(  # NCCL's own hints
        code="nccl-qp-invalid",
        texts=("ibv_modify_qp failed*Invalid argument",),
        meaning="the entry of the GID table that was asked for is empty, or of another kind than the other end's",
        fix="unset NCCL_IB_GID_INDEX; fabricctl doctor (gid-missing, setting-fixed-gid); fabricctl env says which "
        "entries there are to choose",
    ),
    Message(  # nccl#380, #1191, nccl-tests#206
        code="nccl-memlock",
        texts=(
            "Call to ibv_reg_mr*failed with error Cannot allocate memory",
            "Call to ibv_create_cq failed with error Cannot allocate memory",
            "Call to ibv_create_qp failed with error Cannot allocate memory",
        ),
        meaning="the process may lock too little memory to register buffers for RDMA (RLIMIT_MEMLOCK)",
        fix=f"fabricctl doctor, {_IN_THE_JOB} (memlock-low)",
    ),
    Message(  # nccl#905: a flapping link
        code="nccl-port-down",
        texts=(
            "Got async event : port error",
            "async fatal event: port error",
            "Got non-fatal async event: port error",
        ),
        meaning="the link of an adapter's port went down while the job ran",
        fix="fabricctl watch --past says when, and which else; fabricctl doctor (port-down, port-flaps)",
    ),
    Message(  # nccl#1819, PR 2183
        code="nccl-gid-changed",
        texts=("GID table change",),
        severity=Severity.WARNING,
        meaning="the addresses of a RoCE port changed while the job ran, and with them the places in its GID table",
        fix="find what gives the interface its address anew (DHCP, a network manager); set no NCCL_IB_GID_INDEX",
    ),
    Message(
        code="nccl-network-missing",
        texts=("NCCL WARN Error: network*not found", "Failed to initialize any NET plugin"),
        meaning="the network that NCCL_NET asks for has no device here",
        fix=f"fabricctl doctor, {_IN_THE_JOB} (adapters-denied, adapters-hidden); fabricctl env says which network "
        "joins the nodes",
    ),
    Message(
        code="nccl-no-interface",
        texts=(
            "Bootstrap : no socket interface found",
            "Bootstrap: no socket interface found",
            "NET/Socket : No usable listening interface found",
            "NET/IB : No IP interface found",
        ),
        meaning="NCCL found no interface to begin on; NCCL_SOCKET_IFNAME names none that is here and up",
        fix=f'fabricctl doctor, {_IN_THE_JOB} (setting-names-nothing); eval "$(fabricctl env)"',
    ),
    Message(  # awsome-distributed-ai#192
        code="nccl-connect-loopback",
        texts=("Connect to 127.*failed", "connect to 127.*failed", "connect to 127.*returned"),
        meaning="a rank of another host told its loopback address, which leads nowhere from here",
        fix='eval "$(fabricctl env)" on every node sets NCCL_SOCKET_IFNAME to an interface that joins them',
    ),
    Message(  # nccl#697, #975, pytorch#38702
        code="nccl-connect-failed",
        texts=(
            "socketStartConnect: Connect to*failed",
            "NCCL WARN Connect to*failed",
            "NCCL WARN Call to connect*failed",
            "NCCL WARN*: connect to*failed : ",
            "connect*returned*exceeded error retry count",
        ),
        meaning="a rank does not reach the address at which another one listens: an interface that does not join the "
        "hosts (docker0, management), or a firewall",
        fix='fabricctl networks; eval "$(fabricctl env)" on every node sets NCCL_SOCKET_IFNAME; ports are any free one',
    ),
    Message(
        code="nccl-peer-gone",
        texts=(
            "NCCL WARN*Connection closed by remote peer",
            "NCCL WARN [Service thread] Connection closed by localRank",
            "NCCL WARN*failed : Connection reset by peer",
        ),
        severity=Severity.WARNING,
        meaning="another rank ended first, or was cut off",
        fix="look for the first error of that rank; fabricctl watch --past says what went down at that time",
    ),
    Message(  # vllm#18831
        code="nccl-shm-apart",
        texts=("Error while attaching to shared memory segment*No such file",),
        meaning="ranks that take each other for one host's do not share /dev/shm: they are in containers of their own",
        fix="let them share it (docker --ipc=host), or tell them apart: NCCL_HOSTID, another one in each container",
    ),
    Message(  # nccl#290, #342, #525
        code="nccl-shm-small",
        texts=(
            "posix_fallocate failed : No space left on device",
            "failed to extend /dev/shm/",
            "Error while creating shared memory segment",
        ),
        meaning="too little room in /dev/shm for what the ranks of this host share, or others left much there",
        fix=f"fabricctl doctor, {_IN_THE_JOB} (shm-small); df /dev/shm",
    ),
    Message(
        code="nccl-nvlink-refused",
        texts=("P2P is disabled between NVLINK connected GPUs",),
        meaning="GPUs are joined by NVLink, and the driver refuses access over it",
        fix="fabricctl doctor (nvlink-down, nvlink-p2p, p2p-disabled); set no NCCL_IGNORE_DISABLED_P2P",
    ),
    Message(
        code="nccl-p2p-refused",
        texts=("P2P is disabled between connected GPUs",),
        severity=Severity.WARNING,
        meaning="the driver refuses direct access between GPUs that the PCI tree joins",
        fix="fabricctl doctor (p2p-disabled, acs-redirects); fabricctl topo --tree",
    ),
    Message(
        code="cuda-peer-refused",
        texts=("peer access is not supported between these two devices",),
        meaning="the driver refuses direct access between two GPUs",
        fix="fabricctl doctor (nvlink-p2p, p2p-disabled)",
    ),
    Message(  # nccl#976, #1338, #1488, nccl-tests#276
        code="nccl-nvls-failed",
        texts=("Failed to bind NVLink SHARP (NVLS) Multicast memory", "transport/nvls.cc*NCCL WARN Cuda failure"),
        meaning="NVSwitches do not reduce (NVLS): mostly Fabric Manager was started anew without a reset of the GPUs",
        fix=f"{_FABRIC_MANAGER}; reset the GPUs or reboot; until then NCCL_NVLS_ENABLE=0",
    ),
    Message(  # NCCL's own hints; nvbandwidth#44, mscclpp#467
        code="nccl-imex",
        texts=(
            "is available but not working on this system. Check the IMEX",
            "Cuda failure 800 'operation not permitted'",
            "Cuda failure 'operation not permitted'",
        ),
        meaning="hosts of one NVLink domain cannot share memory of GPUs: no IMEX channel for this process, or the IMEX "
        "daemons do not know each other",
        fix="fabricctl doctor (imex-missing); nvidia-imex-ctl -N; NCCL_MNNVL_ENABLE=0 does without",
    ),
    Message(  # nccl-tests#264, pytorch#35710
        code="cuda-not-ready",
        texts=("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY"),
        meaning="GPUs with NVSwitches are not in their fabric: Fabric Manager does not run, or is of another version "
        "than the driver",
        fix=_FABRIC_MANAGER,
    ),
    Message(
        code="nvml-versions",
        texts=("Driver/library version mismatch",),
        meaning="NVIDIA's driver was upgraded and not loaded again, or a container brings libraries of another version",
        fix="fabricd probe (nvml: failed); reboot, or rmmod and modprobe the driver",
    ),
    Message(
        code="nccl-gpu-twice",
        texts=("Duplicate GPU detected",),
        meaning="two ranks took one GPU",
        fix="choose it by LOCAL_RANK (torch.cuda.set_device) before the first collective; fabricctl run sets it",
    ),
    Message(
        code="nccl-versions",
        texts=("Mismatched NCCL version detected", "Mismatched NCCL git versions detected"),
        meaning="ranks have different versions of NCCL",
        fix="one image on all nodes; see what stands in LD_LIBRARY_PATH before it",
    ),
    Message(
        code="nccl-truncated",
        texts=("Message truncated : received", "message truncated : receiving"),
        meaning="ranks are not in the same operation, or NCCL is not set alike on all: its settings must be the same "
        "on every rank",
        fix='compare NCCL_* of the ranks; eval "$(fabricctl env)" is the same for all; fabricctl doctor',
    ),
    Message(  # aws-ofi-nccl#67, #1020, nccl#229
        code="ofi-no-provider",
        texts=(
            "NET/OFI No eligible providers were found",
            "NET/OFI Could not find any optimal provider",
            "NET/OFI Unable to find a protocol that worked",
            "provider efa output empty list",
        ),
        meaning="the plugin for EFA or Slingshot found no device that it may use: NCCL goes on by TCP",
        fix=f"fabricctl doctor, {_IN_THE_JOB} (adapters-denied, adapters-hidden); fabricctl env sets FI_PROVIDER",
    ),
    Message(
        code="nccl-no-adapter",
        texts=("NET/IB : No device found.",),
        severity=Severity.NOTE,
        meaning="NCCL sees no active port that it may open and that its settings leave: hosts are joined by TCP",
        fix=f"fabricctl doctor, {_IN_THE_JOB} (adapters-denied, setting-names-nothing, port-down)",
    ),
    Message(
        code="nccl-no-plugin",
        texts=("NET/Plugin: Could not find: libnccl-net.so", "No plugin found (libnccl-net.so)"),
        severity=Severity.NOTE,
        meaning="harmless where InfiniBand, RoCE or TCP joins the hosts, which NCCL does itself",
        fix="EFA, Slingshot and GPUDirect-TCP need their plugin: fabricctl env says whether the nodes have them",
    ),
)
