"""A Game Boy ROM of a few instructions, and maps for it, to try the env with."""

import textwrap

TITLE = "TINY"
CODE = bytes(
    # stack; interrupts at vertical blank; a window below row 64 from column 40 on; screen on
    [0xF3, 0x31, 0xFE, 0xDF, 0x3E, 0x01, 0xE0, 0xFF, 0x3E, 0x43, 0xE0, 0x4A, 0x3E, 0x2F, 0xE0, 0x4B]
    + [0x3E, 0xF1, 0xE0, 0x40, 0xFB]
    # once a frame, C004: directions held, C005: buttons held, C006: how often A was pressed anew
    + [0x76, 0x00, 0x3E, 0x20, 0xE0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0x2F, 0xE6, 0x0F, 0xEA, 0x04, 0xC0]
    + [0x21, 0x05, 0xC0, 0x46, 0x3E, 0x10, 0xE0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0x2F, 0xE6, 0x0F, 0x77]
    + [0x78, 0x2F, 0xA6, 0xE6, 0x01, 0x21, 0x06, 0xC0, 0x86, 0x77]
    # C016: a random generator; its number is drawn, as one row of the tile that fills the screen
    + [0x21, 0x16, 0xC0, 0x7E, 0x07, 0xC6, 0x35, 0x77, 0x21, 0x00, 0x80, 0x77]
    # C018: frames; C020: the clock's divider
    + [0x21, 0x18, 0xC0, 0x34, 0xF0, 0x04, 0xEA, 0x20, 0xC0, 0x18, 0x100 - 65]
)
LOOP = 21
"""Where in the code the loop begins, to which the last instruction jumps."""

MAP = """
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


def tiny_rom(title=TITLE, cartridge=0, size_code=0, length=0x8000):
    """A ROM with a header that holds."""
    data = bytearray(length)
    data[0x40] = 0xD9  # reti
    data[0x100:0x104] = 0x00, 0xC3, 0x50, 0x01
    data[0x134 : 0x134 + len(title)] = title.encode()
    data[0x147], data[0x148] = cartridge, size_code
    data[0x14D] = -sum(byte + 1 for byte in data[0x134:0x14D]) & 0xFF
    data[0x150 : 0x150 + len(CODE)] = CODE
    return bytes(data)


def put(folder, rom=None, text=MAP):
    """Both files in a folder, as arguments of the env."""
    (folder / "tiny.gb").write_bytes(tiny_rom() if rom is None else rom)
    (folder / "tiny.yaml").write_text(textwrap.dedent(text))
    return {"rom": folder / "tiny.gb", "memory_map": folder / "tiny.yaml"}
