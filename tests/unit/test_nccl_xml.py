"""NCCL's topology XML: reading, writing, and what is wrong with a file said in one sentence."""

import time

import pytest

from fabricd.errors import ParseError
from fabricd.graph.nccl_xml import MAX_DEPTH, Element, parse, render
from fabricd.graph.nccl_xml_read import read
from tests.support.nccl_golden import OWN

FILES = sorted(OWN.glob("*.xml"))

SMALL = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:c0:00.0" count="12" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" latency="0" speed="200000" port="1" guid="0xabc" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""


def changed(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_round_trip(path) -> None:
    root = parse(path.read_text()).root
    text = render(root)
    assert parse(text).root == root
    assert render(parse(text).root) == text


def test_what_nccl_wrote_comes_out_byte_for_byte() -> None:
    assert render(parse(SMALL).root) == SMALL


def test_values_that_need_escaping_come_back() -> None:
    root = Element("system", {"version": "1", "odd": "a<b>&\"c'\n\t\r é"}, (Element("cpu", {"numaid": "0"}),))
    assert parse(render(root)).root == root
    assert any("character references" in note for note in parse(render(root)).notes)


def test_what_no_xml_can_hold_leaves_the_file_one_that_can_be_read() -> None:
    every = "".join(map(chr, [*range(32), 0xFFFE, 0xFFFF, 0x202E]))
    assert parse(render(Element("system", {"a": f"x{every}y"}))).root.attributes["a"] == (
        "x" + "?" * 9 + "\t\n??\r" + "?" * 18 + "??\u202ey"
    )


def test_values_are_read() -> None:
    (cpu,) = read(SMALL).cpus
    switch, gpu, card = cpu.devices()
    assert (cpu.vendor, cpu.familyid, cpu.modelid, cpu.host_hash) == ("GenuineIntel", 6, 106, 0)
    assert (switch.busid, switch.link_speed, switch.link_width) == ("0000:10:00.0", "16.0 GT/s PCIe", 16)
    assert (gpu.gpus[0].sm, gpu.gpus[0].rank, gpu.gpus[0].gdr) == (80, 0, True)
    assert gpu.gpus[0].nvlinks[0].count == 12
    net = card.nics[0].nets[0]
    assert (net.name, net.megabits_per_second, net.guid, net.gdr, net.net) == ("mlx5_0", 200_000, 0xABC, True, True)


def test_comments_quotes_and_octal_as_nccl_takes_them() -> None:
    text = changed('dev="0" sm="80"', "dev='0' sm='0x50'").replace("  <cpu", "<!-- two\nlines -->  <cpu")
    assert next(d for d in read(text).cpus[0].devices() if d.gpus).gpus[0].sm == 80
    assert next(d for d in read(changed('sm="80"', 'sm="0120"')).cpus[0].devices() if d.gpus).gpus[0].sm == 80


def test_what_nccl_itself_would_not_read_is_noted() -> None:
    notes = read('<?xml version="1.0"?>\n' + SMALL.replace("\n  <cpu", "\n\t<cpu")).notes
    assert any("declaration" in note for note in notes)
    assert any("tab" in note for note in notes)
    long = read(changed('vendor="GenuineIntel"', f'vendor="{"x" * 300}"')).notes
    assert any("300 characters" in note for note in long)


def test_unknown_things_are_noted_and_skipped() -> None:
    topology = read(changed("<nic>", "<nic><surprise/>").replace('vendor="GenuineIntel"', 'vendor="Acme"'))
    assert any("<surprise> in <nic>" in note for note in topology.notes)
    assert any("'Acme'" in note and "GenuineIntel" in note for note in topology.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no element found"),
        ("not xml", "line 1"),
        (SMALL[:400], "still open: .*<gpu> of line 5"),
        (SMALL + "<more/>", "junk after document element"),
        (changed("</nic>", "</gpu>"), "mismatched tag"),
        (changed("<nic>", "<nic>text"), "text between elements"),
        ("<graphs version='1'/>", "search result"),
        ("<topology/>", "outermost element is <topology>"),
        (changed('version="1"', 'version="3"'), "version 3"),
        (changed(' version="1"', ""), "version None"),
        (changed('numaid="0" ', ""), "line 2: <cpu>: numaid is missing"),
        (changed('link_width="16">\n      <pci', 'link_width="-4">\n      <pci'), "line 3: <pci>: link_width is -4"),
        (changed('link_width="16">\n      <pci', 'link_width="999">\n      <pci'), "link_width is 999"),
        (changed('busid="0000:10:00.0"', 'busid="zz:10:00.0"'), "line 3: <pci>: busid 'zz:10:00.0'"),
        (changed('busid="0000:10:00.0" ', ""), "busid is missing"),
        (changed('count="12"', 'count="-1"'), "line 6: <nvlink>: count is -1"),
        (changed('count="12" ', ""), "count is missing"),
        (changed('target="0000:c0:00.0" ', ""), "target is missing"),
        (changed('target="0000:c0:00.0"', 'target="arm64"'), "target 'arm64' is no PCI address"),
        (changed('dev="0" sm', 'dev="9999999999999999999999" sm'), "dev is 9999999999999999999999"),
        (changed('sm="80"', 'sm="8_0"'), "sm '8_0' is not an integer"),
        (changed('sm="80"', 'sm="٨٠"'), "is not an integer"),
        (changed('rank="0"', 'rank="one"'), "rank 'one' is not an integer"),
        (changed('guid="0xabc"', 'guid="0xabcdefg"'), "guid '0xabcdefg'"),
        (changed('latency="0"', 'latency="nan"'), "latency 'nan'"),
        (changed("0000:12:00.0", "0000:11:00.0"), "0000:11:00.0 is already the device of line 4"),
        (
            changed("<nic>", '<gpu dev="1" sm="80" rank="0" gdr="1"/><nic>'),
            "rank 0 is also that of line 5",
        ),
    ],
)  # fmt: skip
def test_faults_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read(text, source="topo.xml")


BOMB = '<!DOCTYPE a [<!ENTITY x "ha">' + "".join(
    f'<!ENTITY x{i} "&x{i - 1 or ""};&x{i - 1 or ""};">' for i in range(1, 40)
)
ENTITIES = {
    "bomb": BOMB + '<a b="&x39;"/>',
    "file": '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    "parameter": '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1:9/"> %x;]><a/>',
    "undefined": "<a>&x;</a>",
    "dtd": '<!DOCTYPE system SYSTEM "nccl.dtd"><system version="1"/>',
}


@pytest.mark.parametrize("text", ENTITIES.values(), ids=ENTITIES.keys())
def test_entities_and_document_types_are_refused(text: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ParseError, match=r"DOCTYPE|undefined entity"):
        parse(text)
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<pci>" * 2_000_000, f"nested {MAX_DEPTH + 1} deep"),
        ('<system version="1">' + "<cpu/>" * 300_000 + "</system>", "more than 65536 elements"),
        ("<system " + " ".join(f'a{i}="1"' for i in range(100)) + "/>", "100 attributes"),
        (f'<system version="{"1" * 100_000}"/>', "more than 4096 characters"),
        (f"<{'s' * 100_000}/>", "more than 4096 characters"),
        (b"<a>" + b" " * (17 * 1024 * 1024) + b"</a>", "bytes, more than"),
        ("<!--" + "x" * 10_000_000, "unclosed token"),
        ('<system version="1">\ud800</system>', "not text"),
        (b"\xff\xfe<\x00", "line 1"),
        (b'<?xml version="1.0" encoding="klingon"?><system version="1"/>', "line 1"),
        (b"\x00", "line 1"),
    ],
    ids=[
        "nesting",
        "elements",
        "attributes",
        "value",
        "tag",
        "size",
        "comment",
        "surrogate",
        "utf16",
        "encoding",
        "nul",
    ],
)
def test_hostile_texts_end_soon_in_an_error(text: str | bytes, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ParseError, match=message):
        read(text)
    assert time.perf_counter() - began < 5


def test_bytes_in_their_own_encoding() -> None:
    text = '<?xml version="1.0" encoding="iso-8859-1"?><system version="1" place="Zürich"/>'
    assert parse(text.encode("iso-8859-1")).root.attributes["place"] == "Zürich"
    assert parse(text).root.attributes["place"] == "Zürich"


def test_trimming_drops_branches_without_ranks_and_ports() -> None:
    empty = '<pci busid="0000:40:00.0" class="0x060400"><pci busid="0000:41:00.0" class="0x060400"/></pci>'
    text = changed("  </cpu>\n", f'  {empty}</cpu><cpu numaid="1" arch="x86_64">{empty.replace(":4", ":5")}</cpu>')
    topology = read(text)
    assert len(topology.cpus) == 2
    trimmed = topology.trimmed()
    assert [device.busid for cpu in trimmed.cpus for device in cpu.devices()] == [
        "0000:10:00.0",
        "0000:11:00.0",
        "0000:12:00.0",
    ]
