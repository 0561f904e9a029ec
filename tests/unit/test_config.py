"""Configuration: layers, every fault at once, and laws that hold for any input."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config import RULES, Config, keep_unreloadable, needs_restart
from fabricd.config_load import load
from fabricd.errors import ConfigError
from fabricd.model.network import NetworkRule

NOWHERE = Path("/nonexistent/fabricd.toml")


def read(file=None, environ=None, **options):
    return load(file, environ=environ or {}, options=options, default_file=NOWHERE)


def faults(*args, **kwargs) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*args, **kwargs)
    return list(caught.value.faults)


def attempt(environ=None, **options) -> tuple[Config | None, tuple[str, ...]]:
    """Return the configuration, or its faults."""
    try:
        return read(environ=environ, **options).config, ()
    except ConfigError as error:
        return None, error.faults


def toml(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text)
    return path


def test_defaults_are_loopback_and_no_peers():
    loaded = read()
    config = loaded.config
    assert (config.host, config.port, config.peers, config.token_file) == ("127.0.0.1", 7470, (), None)
    assert (loaded.credentials.token, loaded.file, config.beyond_loopback) == (None, None, False)


def test_every_setting_has_a_rule_and_its_default_keeps_it():
    for key, rule in RULES.items():
        default = getattr(Config(), key)
        value = "" if default is None else default
        assert rule.kind.check(value) == default, key
        assert rule.told, key
    assert set(RULES) == set(Config.__dataclass_fields__)


def test_the_nearer_layer_wins(tmp_path):
    file = toml(tmp_path, 'port = 1111\nname = "file"\nlog_level = "error"\npeers = ["http://a:1"]\n')
    environ = {"FABRICD_PORT": "2222", "FABRICD_NAME": "environment", "FABRICD_PEERS": "http://b:1, http://c:2"}
    config = read(file, environ, port=3333).config
    assert (config.port, config.name, config.log_level) == (3333, "environment", "error")
    assert config.peers == ("http://b:1", "http://c:2")


def test_the_environment_names_the_file_and_the_default_is_taken_when_there(tmp_path):
    file = toml(tmp_path, "port = 1111")
    assert read(environ={"FABRICD_CONFIG": str(file)}).config.port == 1111
    assert load(environ={}, default_file=file).config.port == 1111
    assert load(environ={}, default_file=file).file == file


def test_an_empty_variable_is_none(tmp_path):
    file = toml(tmp_path, 'port = 1111\nsocket = "/run/x.sock"')
    config = read(file, {"FABRICD_PORT": "", "FABRICD_SOCKET": "", "FABRICD_CONFIG": ""}).config
    assert (config.port, config.socket) == (1111, Path("/run/x.sock"))


def test_every_fault_of_every_layer_at_once(tmp_path):
    file = toml(
        tmp_path,
        'hots = "x"\nport = "7470"\nmax_requests = true\npeers = ["http://a:1", "http://A:1"]\n'
        "probe_interval_seconds = 0\n",
    )
    environ = {"FABRICD_LOG_LEVEL": "laud", "FABRICD_TOKEN_FLIE": "/x", "FABRICD_MAX_BODY_BYTES": "many"}
    told = faults(file, environ, host="nowhere", node_id="a b", token_file="relative")
    text = "\n".join(told)
    assert len(told) == 11, text
    for part in (
        f"{file}: hots is no setting; did you mean 'host'?",
        f"{file}: port: '7470' is not a whole number from 0 to 65535",
        f"{file}: max_requests: True is not",
        f"{file}: peers: listed twice: http://a:1",
        f"{file}: probe_interval_seconds: 0 is not seconds from 1 to 3600",
        "environment: log_level: 'laud' is not one of debug, info, warning, error",
        "environment: FABRICD_TOKEN_FLIE is no setting; did you mean 'FABRICD_TOKEN_FILE'?",
        "environment: max_body_bytes: 'many' is not a whole number",
        "command line: host: 'nowhere' is not an IP address",
        "command line: node_id: 'a b' is not",
        "command line: token_file: 'relative' is not an absolute path",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"port = ", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (b"a = " + b"[" * 100_000, "not TOML"),
        (b"#" * (1 << 20) + b"\n", "more than"),
        (b"[section]\nport = 1\n", "section_port is no setting"),
        (b"port = 1979-05-27\n", "is not a whole number"),
        (b"peers = 'http://a:1'\n", "is not a list"),
        (b"allowed_hosts = ['a b']\n", "is not a host name"),
        (b"probe_interval_seconds = nan\n", "is not seconds"),
        (b"socket = 5\n", "is not an absolute path"),
        (b"socket = '/" + b"x" * 108 + b"'\n", "107 bytes"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, content, part):
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    (told,) = faults(path)
    assert part in told


def test_a_file_that_is_not_there_or_a_directory(tmp_path):
    assert "No such file" in faults(tmp_path / "none")[0]
    assert "Is a directory" in faults(tmp_path)[0]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "http://",
        "a:1",
        "http://a:99999",
        "http://a/path",
        "http://a?x=1",
        "http://a b",
        "http://[::1",
        "http://a:0",
        5,
    ],
)
def test_what_is_no_peer(tmp_path, url):
    assert "peer" in faults(peers=[url])[0]


def test_a_password_in_a_peers_url_is_refused_and_not_shown():
    (told,) = faults(peers=["http://user:hunter2@a:1"])
    assert "password" in told
    assert "hunter2" not in told


def test_beyond_loopback_needs_a_token(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    for host in ("0.0.0.0", "::", "192.0.2.2", "fd00::1"):
        assert "token_file" in faults(host=host)[0]
    loaded = read(host="0.0.0.0", token_file=str(token))
    assert (loaded.credentials.token, loaded.config.beyond_loopback) == ("secret", True)
    assert "secret" not in repr(loaded)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert not read(host=host).config.beyond_loopback


def test_a_service_called_fabricd_in_kubernetes_does_no_harm():
    environ = {
        "FABRICD_PORT": "tcp://10.0.0.1:7470",
        "FABRICD_SERVICE_HOST": "10.0.0.1",
        "FABRICD_SERVICE_PORT": "7470",
        "FABRICD_PORT_7470_TCP": "tcp://10.0.0.1:7470",
        "FABRICD_PORT_7470_TCP_ADDR": "10.0.0.1",
        "FABRICD_URL": "http://x",
        "FABRICD_GROUP_SECRET": "s",
    }
    assert read(environ=environ).config.port == 7470


def test_records_lie_beside_the_socket_unless_told_otherwise():
    assert read(socket="/run/x/a.sock").config.records_dir == Path("/run/x/a.d")
    assert read(socket="").config.records_dir is None
    assert read(socket="", runtime_dir="/var/x").config.records_dir == Path("/var/x")


def test_what_only_a_restart_changes():
    running, wanted = read(port=1, log_level="info").config, read(port=2, log_level="debug").config
    assert needs_restart(running, wanted) == ["port"]
    kept = keep_unreloadable(running, wanted)
    assert (kept.port, kept.log_level) == (1, "debug")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(RULES)) | st.text(string.ascii_lowercase, max_size=12), JUNK, max_size=6))
def test_any_options_give_a_configuration_or_a_list_of_faults(options):
    config, told = attempt(**options)
    assert (config is None) == bool(told)
    assert all(isinstance(fault, str) and len(fault) < 700 for fault in told)
    for key, rule in RULES.items() if config else ():
        value = getattr(config, key)
        assert rule.kind.check("" if value is None else value) == value, key


@given(st.dictionaries(st.sampled_from([f"FABRICD_{key.upper()}" for key in RULES]), st.text(max_size=30), max_size=5))
def test_any_environment_gives_a_configuration_or_a_list_of_faults(environ):
    environ.pop("FABRICD_TOKEN_FILE", None)
    config, told = attempt(environ)
    assert (config is None) == bool(told)


@given(st.integers(0, 65535), st.sampled_from(["info", "debug"]), st.floats(1, 3600))
def test_environment_and_options_say_the_same(port, level, interval):
    environ = {"FABRICD_PORT": str(port), "FABRICD_LOG_LEVEL": level, "FABRICD_PROBE_INTERVAL_SECONDS": repr(interval)}
    assert read(environ=environ).config == read(port=port, log_level=level, probe_interval_seconds=interval).config


def test_tables_of_the_file_are_settings_of_that_beginning(tmp_path):
    file = toml(tmp_path, 'cluster.backend = "etcd"\n[etcd]\nprefix = "/x/"\nendpoints = ["http://e:2379"]\n')
    config = read(file).config
    assert (config.cluster_backend, config.etcd_prefix, config.etcd_endpoints) == ("etcd", "/x/", ("http://e:2379",))
    assert "etcd_lease is no setting; did you mean 'etcd_lease_seconds'?" in "\n".join(
        faults(toml(tmp_path, "[etcd]\nlease = 5\n"))
    )


@pytest.mark.parametrize(
    "item", ["", "topo.xml", "/", "/opt/", "/opt//a", "/opt/../etc/a", "/opt/**/a", "/a\0", "/" + "x" * 1024, 5]
)
def test_places_of_topology_files(item):
    assert read(topology_files=["/opt/*/topo.xml"]).config.topology_files == ("/opt/*/topo.xml",)
    assert "not an absolute path of a file" in faults(topology_files=[item])[0]
    assert "expected at most 64" in faults(topology_files=["/a"] * 65)[0]


@pytest.mark.parametrize("prefix", ["", "/", "x/", "/x", "//", "/a//b/", "/a b/", "/" + "x" * 127 + "/", 5])
def test_a_prefix_begins_and_ends_with_a_slash(prefix):
    assert "etcd_prefix" in faults(etcd_prefix=prefix)[0]


@pytest.mark.parametrize(
    "entry", ["dns://", "dns://name", "dns://name:0", "dns://na me:1", "dns://u:p@n:1", "dns://n:1/x"]
)
def test_a_name_for_peers_has_a_port(entry):
    assert "peers" in faults(peers=[entry])[0]


def test_names_and_urls_of_peers():
    entries = ["DNS://Fabricd.example:7470", "dns://[::1]:7470", "http://a:1/"]
    assert read(peers=entries).config.peers == ("dns://fabricd.example:7470", "dns://[::1]:7470", "http://a:1")


def test_more_than_64_peers_need_map_nodes():
    many = [f"http://10.0.{number // 250}.{number % 250}:7470" for number in range(65)]
    assert "65 peers that all ask each other are more than 64: choose 3 to 5 as map_nodes" in faults(peers=many)[0]
    assert read(peers=many[:64]).config.peers == tuple(many[:64])
    assert read(peers=many, map_nodes=many[:3]).config.map_nodes == tuple(many[:3])


def test_roles_and_backends_that_do_not_fit_are_told():
    assert "needs map_nodes" in faults(role="agent")[0]
    assert "leave peers and peers_file out" in faults(cluster_backend="etcd", peers=["http://a:1"])[0]
    assert "expected 1 to" in faults(cluster_backend="etcd", etcd_endpoints=[])[0]
    assert read(cluster_backend="etcd", role="agent", map_nodes=["http://a:1"]).config.role == "agent"


def test_tables_of_networks_become_rules(tmp_path):
    text = """
    [[network]]
    subnet = "10.1.0.0/16"
    name = "fabric"
    role = "compute"
    [[network]]
    interface = "mlx5_[0-3]:1"
    pkey = 0x8001
    prefix = "FEC0:0000:0000:0001"
    vlan = 7
    role = "storage"
    """
    rules = (
        NetworkRule(name="fabric", role="compute", subnet="10.1.0.0/16"),
        NetworkRule(role="storage", interface="mlx5_[0-3]:1", pkey=0x8001, prefix="fec0:0000:0000:0001", vlan=7),
    )
    assert read(toml(tmp_path, text)).config.network == rules
    environ = {"FABRICD_NETWORK": '[{"role": "storage", "interface": "eth1"}]'}
    assert read(environ=environ).config.network == (NetworkRule(role="storage", interface="eth1"),)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('network = "x"', "expected tables"),
        ("network = [1]", "the 1. table is no table"),
        ('[[network]]\nname = "a"', "would match every port"),
        ("[[network]]\nvlan = 7", "gives neither name nor role"),
        ('[[network]]\nrole = "compute"\nsubnet = "10.1.0.1/16"', "is no subnet such as"),
        ('[[network]]\nrole = "compte"\nvlan = 7', "role: 'compte' is not one of"),
        ('[[network]]\nrole = "compute"\nvlan = 5000', "vlan: 5000 is not a whole number from 1 to 4094"),
        ('[[network]]\nrole = "compute"\nprefix = "fe80"', "prefix: 'fe80' is not a subnet prefix"),
        ('[[network]]\nrole = "compute"\ninterfce = "e*"', "interfce is no key; did you mean 'interface'"),
        ('[[network]]\nname = "a/b"\nvlan = 7', "name: 'a/b' is not at most 64 letters"),
    ],
)
def test_what_is_wrong_with_a_table_of_a_network(tmp_path, value, says):
    told = faults(toml(tmp_path, value))
    assert any(says in fault for fault in told), told


@pytest.mark.parametrize("value", ["relative.conf", "/etc/*.conf", "/etc/../x"])
def test_files_of_placement_are_named_one_by_one(tmp_path, value):
    assert faults(toml(tmp_path, f'[placement]\nfiles = ["{value}"]\n'))
    assert read(toml(tmp_path, '[placement]\nfiles = ["/etc/t.conf"]\n')).config.placement_files == ("/etc/t.conf",)
