; Power-on, the cartridge's entry point and the few things that C cannot say.
; Interrupts stay disabled for good: the game sleeps in HALT, which a pending interrupt ends all the same.

        .module crt0
        .globl  _main, _wait_for_vblank, _wait_for_line, _copy_sprites, _late

        .area   _HEADER (ABS)
        .org    0x100
        nop
        jp      start
        .ds     0x4C                    ; 0x104-0x14F: makebin writes the header here

        .org    0x150
start:
        di
        ld      sp, #0xE000             ; the stack grows down from the end of work RAM
        xor     a, a
        ld      hl, #0xC000             ; work RAM starts out random: clear all of it
        ld      bc, #0x1FF0
clear:
        ld      (hl+), a
        dec     c
        jr      NZ, clear
        dec     b
        bit     7, b
        jr      Z, clear
        ld      c, #0x80                ; the sprite copier must run from high RAM
        ld      b, #copier_end - copier
        ld      hl, #copier
place:
        ld      a, (hl+)
        ldh     (c), a
        inc     c
        dec     b
        jr      NZ, place
        xor     a, a
        ldh     (0x0F), a
        call    _main
stop:
        jr      stop

; Sprites: a DMA from 0xC100 to the LCD. The CPU sees only high RAM meanwhile, so it waits there.
copier:
        ld      a, #0xC1
        ldh     (0x46), a
        ld      a, #40
wait:
        dec     a
        jr      NZ, wait
        ret
copier_end:

_copy_sprites = 0xFF80

; Sleeps until the next vertical blank. One that has gone by unseen is counted as late, and the next is awaited.
_wait_for_vblank::
        ldh     a, (0x0F)
        rra
        jr      NC, sleep
        ld      hl, #_late
        inc     (hl)
        jr      NZ, unsaturated
        dec     (hl)
unsaturated:
        xor     a, a
        ldh     (0x0F), a
sleep:
        ld      a, #1                   ; only the vertical blank ends this sleep
        ldh     (0xFF), a
asleep:
        halt
        nop                             ; HALT may run the next byte twice: let it be this one
        ldh     a, (0x0F)
        rra
        jr      NC, asleep
        xor     a, a
        ldh     (0x0F), a
        ret

; Sleeps until the LCD begins to draw again (the line that screen_begin() chose).
_wait_for_line::
        ld      a, #2                   ; only the LCD's line compare ends this sleep
        ldh     (0xFF), a
drawing:
        ldh     a, (0x0F)
        and     a, #2
        jr      NZ, awake
        halt
        nop
        jr      drawing
awake:
        xor     a, a
        ldh     (0x0F), a
        ret

; The order of areas: code and constants in ROM, variables in RAM.
        .area   _CODE
        .area   _HOME
        .area   _DATA
        .area   _BSS
