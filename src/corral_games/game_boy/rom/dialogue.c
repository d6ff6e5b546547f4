// Talking, reading and the chest: a box of words over the lower part of the screen, in the LCD's window.
#include "game.h"
#include "tables.h"

#define BOX_TOP 96
#define ROWS 6 // four of words, two of border
#define LINE_WIDTH 18
#define NEW_LINE 0xFD
#define NEW_PAGE 0xFE
#define END 0xFF

static const uint8_t *next_words;
static uint8_t row, told;

static void hide_under_box(void) {
    for (uint8_t i = 0; i < 16; ++i)
        if (sprites[i].y > BOX_TOP) sprites[i].y = 0;
}

static void begin(uint8_t text) {
    mode = DIALOGUE;
    told = text;
    next_words = words[text];
    row = 0;
    hide_under_box();
}

void open_chest(uint8_t cell) {
    chest_open = 1;
    bar_parts |= BAR_THINGS;
    tiles[cell] = OPEN_CHEST;
    show_picture(cell, PICTURE_OPEN_CHEST);
    begin(WORDS_CHEST);
}

// Whether there is something to talk to, read or open at a pixel of the room; if so, that happens.
static uint8_t act_at(uint8_t x, uint8_t y) {
    if (x >= 160 || y >= 128) return 0;
    uint8_t cell = cell_at(x, y);
    switch (tiles[cell]) {
    case VILLAGER: begin(chest_open ? WORDS_VILLAGER_BELL : talks ? WORDS_VILLAGER_AGAIN : WORDS_VILLAGER_FIRST); return 1;
    case SIGN: begin(room_sign[room]); return 1;
    case CHEST: open_chest(cell); return 1;
    default: return 0;
    }
}

// A: what the hero looks at, straight ahead or, failing that, a little to either side.
void face_and_act(void) {
    uint8_t x = hero_x + 8, y = hero_y + 10;
    if (facing >= LEFT) {
        x = facing == LEFT ? x - 14 : x + 14;
        if (!act_at(x, y) && !act_at(x, y - 4)) act_at(x, y + 5);
    } else {
        y = facing == UP ? y - 14 : y + 14;
        if (!act_at(x, y) && !act_at(x - 6, y)) act_at(x + 5, y);
    }
}

// In the vertical blank, one row of the box per frame: border, words, border. Returns 0 when there is none to draw.
uint8_t draw_box(void) {
    if (row == ROWS) return 0;
    uint8_t *at = WINDOW_MAP + ((uint16_t)row << 5);
    if (row == 0 || row == ROWS - 1) {
        uint8_t line = row ? TILE(PICTURE_BOX_SIDE, BOTTOM_LEFT) : TILE(PICTURE_BOX_SIDE, TOP_LEFT);
        *at++ = row ? TILE(PICTURE_BOX, BOTTOM_LEFT) : TILE(PICTURE_BOX, TOP_LEFT);
        for (uint8_t i = 0; i < LINE_WIDTH; ++i) *at++ = line;
        *at = row ? TILE(PICTURE_BOX, BOTTOM_RIGHT) : TILE(PICTURE_BOX, TOP_RIGHT);
    } else {
        const uint8_t *letter = next_words;
        uint8_t blanks = LINE_WIDTH;
        *at++ = TILE(PICTURE_BOX_SIDE, TOP_RIGHT);
        for (; *letter < NEW_LINE; --blanks) *at++ = *letter++;
        for (; blanks; --blanks) *at++ = LETTER_SPACE;
        *at = TILE(PICTURE_BOX_SIDE, BOTTOM_RIGHT);
        next_words = *letter == NEW_LINE ? letter + 1 : letter;
    }
    if (++row == ROWS) {
        copy_sprites();
        window_shown = 1;
        WINDOW_Y = BOX_TOP;
        LCD_CONTROL = LCD_ON | LCD_WINDOW;
    }
    return 1;
}

static void finish(void) {
    mode = PLAY;
    window_shown = 0;
    LCD_CONTROL = LCD_ON;
    if (told == WORDS_VILLAGER_FIRST) {
        talks = 1;
    } else if (told == WORDS_VILLAGER_BELL) {
        talks = 2;
        mode = WON;
    }
}

// One frame of dialogue: once the box is drawn, A leads on.
void dialogue_step(void) {
    if (row != ROWS || !(pressed & PAD_A)) return;
    if (*next_words == NEW_PAGE) {
        ++next_words;
        row = 1;
    } else {
        finish();
    }
}
