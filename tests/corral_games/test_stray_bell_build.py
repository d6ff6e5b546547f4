"""Stray Bell's ROM equals what its sources build, and errors in the sources are reported with file and line."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

import corral_games

ROM = Path(corral_games.__file__).parent / "game_boy" / "stray_bell.gb"
SOURCES = ROM.parent / "rom"


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(SOURCES)
    spec = importlib.util.spec_from_file_location("stray_bell_build", SOURCES / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rom_equals_what_its_sources_build(build):
    version = build.find_sdcc()
    if version != build.SDCC_VERSION:
        pytest.skip(f"needs SDCC {build.SDCC_VERSION}, found {version}")
    assert build.build() == ROM.read_bytes()


def test_the_rom_has_a_title_and_valid_checksums():
    rom = ROM.read_bytes()
    assert len(rom) == 32768
    assert rom[0x134:0x143].rstrip(b"\0") == b"STRAYBELL"
    assert rom[0x147:0x14A] == b"\0\0\0", "no mapper, 32 KB, no RAM"
    header_checksum = 0
    for byte in rom[0x134:0x14D]:
        header_checksum = (header_checksum - byte - 1) & 0xFF
    assert rom[0x14D] == header_checksum
    assert rom[0x14E] << 8 | rom[0x14F] == (sum(rom) - rom[0x14E] - rom[0x14F]) & 0xFFFF


def test_without_sdcc_the_build_gives_the_install_command(build, monkeypatch, capsys):
    monkeypatch.setattr(build.shutil, "which", lambda tool: None)
    assert build.main([]) == 2
    assert "apt install sdcc" in capsys.readouterr().err
    assert build.main(["--chekc"]) == 2
    assert "--check" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "rooms.txt",
            "Te,.::(^)T",
            "Te,.::(^)",
            r"rooms.txt:\d+: expected 8 rows of 10 letters, found 'Te,\.::\(\^\)'",
        ),
        ("words.txt", "sign_home:\n", "sign_home:\n  ---\n", r"words.txt:\d+: '---' follows nothing"),
        ("words.txt", "sign_home:\n", "", r"words.txt:\d+: 'BELLWOOD FARM.' follows nothing; expected name: first"),
        ("words.txt", "GEESE!", "G\u00c4NSE!", r"words.txt:\d+: expected ASCII letters only"),
        ("rooms.txt", "T tree           solid", "T tall_0         solid", r"rooms.txt:\d+: unknown 'tall_0'"),
        ("rooms.txt", "T tree           solid", "T tree           solid solid", r"rooms.txt:\d+: unknown 'solid'"),
        ("rooms.txt", "Te,.::(^)T", "Te,.::(?)T", r"rooms.txt:\d+: unknown letter '\?'; the legend has: "),
        ("rooms.txt", "Te,.::(^)T", ".e,.::(^)T", r"rooms.txt:\d+: room 4: right edge, tile 1: 'T' meets '\.'"),
        ("rooms.txt", "room 5 sign sign_home", "room 5 sign sgin", r"rooms.txt:\d+: words.txt has no 'sgin'"),
        ("rooms.txt", "room 5 sign sign_home", "room 5", r"rooms.txt:\d+: room 5: a sign in the rows needs"),
        (
            "rooms.txt",
            "T tree           solid",
            "T tree           sold",
            r"rooms.txt:\d+: unknown 'sold'; there are: free,",
        ),
        ("rooms.txt", "::::::::::", ":::::::::b", r"rooms.txt:\d+: room 5: a walker must be 2 tiles from"),
        ("words.txt", "  MIND THE GEESE!", "  MIND THE GEESE;", r"words.txt:\d+: no drawing for the letter ';'"),
        ("words.txt", "  MIND THE GEESE!", "  MIND THE GEESE! ALWAYS", r"words.txt:\d+: a page has 4 lines of 18"),
        ("tiles.txt", "background: grass", "backgruond: grass", r"tiles.txt:\d+: unknown kind 'backgruond'"),
        ("tiles.txt", "over grass:", "over gras:", r"tiles.txt:\d+: unknown ground 'gras'"),
        ("tiles.txt", "+++++++++++++++.", "+++++++++++++++", r"tiles.txt:\d+: floor: expected 16 characters, found 15"),
        ("tiles.txt", "+++++++++++++++.", "+++++++o+++++++.", r"tiles.txt:\d+: floor: unknown character 'o'"),
        ("font.txt", "letters: A", "letter: A", r"font.txt:\d+: expected 'letters:', found 'letter'"),
    ],
)
def test_errors_in_asset_files_name_file_and_line(build, tmp_path, name, old, new, message):
    for path in SOURCES.glob("*.txt"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    with pytest.raises(build.AssetError) as error:
        build.read_assets(tmp_path)
    assert re.match(message, str(error.value)), str(error.value)
