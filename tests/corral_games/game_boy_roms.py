"""TINY, a Game Boy ROM of a few instructions for tests of the env, and a memory map for it."""

import textwrap

TITLE = "TINY"
TINY_CODE = bytes.fromhex(
    # Set up the stack, the interrupt at vertical blank, and a window below row 67 from column 40 on; turn the screen on.
    "F3 31 FE DF 3E 01 E0 FF 3E 43 E0 4A 3E 2F E0 4B 3E F1 E0 40 FB"
    # Once a frame: C004 is set to the directions held, C005 to the buttons held; C006 counts new presses of A.
    "76 00 3E 20 E0 00 F0 00 F0 00 2F E6 0F EA 04 C0"
    "21 05 C0 46 3E 10 E0 00 F0 00 F0 00 2F E6 0F 77 78 2F A6 E6 01 21 06 C0 86 77"
    # C016 holds a random generator. Its number is drawn as one row of the tile that fills the screen.
    "21 16 C0 7E 07 C6 35 77 21 00 80 77"
    # C018 counts frames; C020 is a copy of the clock's divider register; then the next frame.
    "21 18 C0 34 F0 04 EA 20 C0 18 BF"
)

TINY_MAP = """
title: TINY
start: {buttons: [wait 20, a], seed: 0xC016}
values:
  directions: {at: 0xC004}
  pressed: {at: 0xC006}
  frames: {at: 0xC018}
  room: {at: 0xC100}
  flag: {at: 0xC101, bit: 3}
  coins: {at: 0xC102}
  health: {at: 0xC103}
  over: {at: 0xC104, equals: [3, 4]}
  awake: {at: 0xC105}
features:
  - {name: directions, at: 0xC004, bits: 4}
  - {name: random, at: 0xC016}
  - {name: frames, at: 0xC018, max: 255}
  - {name: clock, at: 0xC020}
  - {name: room, at: 0xC100, one_hot: 3}
rewards:
  new_room: {weight: 1.0, new: room}
  flag: {weight: 2.0, first: flag}
  coin: {weight: 0.5, gain: coins}
  hurt: {weight: -0.25, loss: health}
  dream: {weight: 4.0, new: room, when: awake}
ends: [over]
shown: [directions, pressed, coins]
"""


def tiny_rom(title=TITLE, colour=0, cartridge=0, size_code=0, length=0x8000):
    """Return a ROM with a valid header checksum."""
    data = bytearray(length)
    data[0x40] = 0xD9  # reti
    data[0x100:0x104] = 0x00, 0xC3, 0x50, 0x01
    data[0x134 : 0x134 + len(title)] = title.encode()
    data[0x143], data[0x147], data[0x148] = colour, cartridge, size_code
    data[0x14D] = -sum(byte + 1 for byte in data[0x134:0x14D]) & 0xFF
    data[0x150 : 0x150 + len(TINY_CODE)] = TINY_CODE
    return bytes(data)


def write_game_files(directory, rom=None, map_text=TINY_MAP):
    """Write a ROM (default: TINY) and a memory map to a directory; return their paths as arguments of the env."""
    (directory / "tiny.gb").write_bytes(tiny_rom() if rom is None else rom)
    (directory / "tiny.yaml").write_text(textwrap.dedent(map_text))
    return {"rom": directory / "tiny.gb", "memory_map": directory / "tiny.yaml"}
