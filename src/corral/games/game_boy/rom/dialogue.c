// Talking, reading and the chest: a box of words over the lower part of the screen, in the LCD's window.
#include "game.h"
#include "tables.h"

#define BOX_TOP 96
#define LINES 4
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
    bar_is_old = 1;
    tiles[cell] = OPEN_CHEST;
    show_picture(cell, PICTURE_OPEN_CHEST);
    begin(WORDS_CHEST);
}

// A: what is on the tile that the hero looks at.
void face_and_act(void) {
    uint8_t x = hero_x + 8, y = hero_y + 10;
    switch (facing) {
    case DOWN: y += 14; break;
    case UP: y -= 14; break;
    case LEFT: x -= 14; break;
    default: x += 14; break;
    }
    if (x >= 160 || y >= 128) return;
    uint8_t cell = cell_at(x, y);
    switch (tiles[cell]) {
    case VILLAGER: begin(chest_open ? WORDS_VILLAGER_BELL : talks ? WORDS_VILLAGER_AGAIN : WORDS_VILLAGER_FIRST); break;
    case SIGN: begin(room_sign[room]); break;
    case CHEST: open_chest(cell); break;
    }
}

// In the vertical blank, one row of the box per frame: border, words, border.
static void draw_row(void) {
    uint8_t *at = WINDOW_MAP + ((uint16_t)row << 5);
    uint8_t left = picture_top_left[PICTURE_BOX], side = picture_top_right[PICTURE_BOX];
    if (row == 0 || row == LINES + 1) {
        *at++ = row ? picture_bottom_left[PICTURE_BOX] : left;
        uint8_t line = row ? picture_bottom_left[PICTURE_BOX_SIDE] : picture_top_left[PICTURE_BOX_SIDE];
        for (uint8_t i = 0; i < 18; ++i) *at++ = line;
        *at = row ? picture_bottom_right[PICTURE_BOX] : side;
    } else {
        uint8_t column = 0;
        *at++ = picture_top_right[PICTURE_BOX_SIDE];
        while (*next_words < NEW_LINE) {
            *at++ = *next_words++;
            ++column;
        }
        if (*next_words == NEW_LINE) ++next_words;
        for (; column < 18; ++column) *at++ = LETTER_SPACE;
        *at = picture_bottom_right[PICTURE_BOX_SIDE];
    }
    ++row;
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

// One frame of dialogue: first the box appears, then A leads on.
void dialogue_step(void) {
    if (row < LINES + 2) {
        draw_row();
        if (row == LINES + 2) {
            window_shown = 1;
            WINDOW_Y = BOX_TOP;
            LCD_CONTROL = LCD_ON | LCD_WINDOW;
        }
    } else if (pressed & PAD_A) {
        if (*next_words == NEW_PAGE) {
            ++next_words;
            row = 1;
        } else {
            finish();
        }
    }
}
