// All that writes to video memory. While the LCD is on, that is possible only in the vertical blank: the game
// notes what changed, and update_screen() writes it there. Whole screens are drawn with the LCD off.
#include "game.h"
#include "tables.h"

#define CHANGES 8

uint8_t pictures[80];
uint8_t bar_is_old, window_shown;
static uint8_t change_cell[CHANGES], change_picture[CHANGES], change_count;
static const uint16_t cell_row_at[8] = {0x9840, 0x9880, 0x98C0, 0x9900, 0x9940, 0x9980, 0x99C0, 0x9A00};

static void copy(uint8_t *to, const uint8_t *from, uint16_t count) {
    while (count--) *to++ = *from++;
}

static void fill(uint8_t *to, uint8_t value, uint16_t count) {
    while (count--) *to++ = value;
}

// A picture of 2x2 tiles at an address of one of the maps.
static void put(uint8_t *at, uint8_t picture) {
    at[0] = picture_top_left[picture];
    at[1] = picture_top_right[picture];
    at[32] = picture_bottom_left[picture];
    at[33] = picture_bottom_right[picture];
}

// Only in the vertical blank: switching off elsewhere can damage the real LCD.
void lcd_off(void) {
    LCD_CONTROL = 0;
}

void lcd_on(void) {
    change_count = 0;
    copy_sprites();
    INTERRUPTS = 0;
    LCD_CONTROL = window_shown ? LCD_ON | LCD_WINDOW : LCD_ON;
}

void hide_sprites(void) {
    uint8_t *at = (uint8_t *)sprites;
    for (uint8_t i = 0; i < 160; ++i) *at++ = 0;
}

void screen_begin(void) {
    lcd_off();
    BACKGROUND_SHADES = 0xE4;
    SPRITE_SHADES = 0xE0;
    SCROLL_X = 0;
    SCROLL_Y = 0;
    WINDOW_X = 7;
    WINDOW_Y = 96;
    SOUND_POWER = 0;
    copy(SPRITE_PICTURES, sprite_tiles, SPRITE_TILES * 16);
    // Background tiles 0-127 are at 9000, 128-255 before them at 8800.
    copy((uint8_t *)0x9000, background_tiles, BACKGROUND_TILES > 128 ? 128 * 16 : BACKGROUND_TILES * 16);
#if BACKGROUND_TILES > 128
    copy((uint8_t *)0x8800, background_tiles + 128 * 16, (BACKGROUND_TILES - 128) * 16);
#endif
    hide_sprites();
}

void draw_room(void) {
    const uint8_t *picture = pictures;
    uint8_t *at = BACKGROUND_MAP + 64;
    for (uint8_t row = 0; row < 8; ++row) {
        for (uint8_t column = 0; column < 10; ++column) {
            put(at, *picture++);
            at += 2;
        }
        at += 44;
    }
}

void draw_bar(void) {
    uint8_t *at = BACKGROUND_MAP;
    uint8_t left = health;
    for (uint8_t heart = 0; heart < 3; ++heart) {
        put(at, left >= 2 ? PICTURE_HEART_FULL : left ? PICTURE_HEART_HALF : PICTURE_HEART_EMPTY);
        left = left >= 2 ? left - 2 : 0;
        at += 2;
    }
    uint8_t tens = 0, ones = coins;
    while (ones >= 10) {
        ones -= 10;
        ++tens;
    }
    at[5] = tall_digit_top[tens];
    at[6] = tall_digit_top[ones];
    at[37] = tall_digit_bottom[tens];
    at[38] = tall_digit_bottom[ones];
    put(BACKGROUND_MAP + 15, keys ? PICTURE_BAR_KEY : PICTURE_BAR_BLANK);
    put(BACKGROUND_MAP + 18, chest_open ? PICTURE_BAR_BELL : PICTURE_BAR_BLANK);
}

static void clear_map(uint8_t picture) {
    uint8_t *at = BACKGROUND_MAP;
    for (uint8_t row = 0; row < 9; ++row) {
        for (uint8_t column = 0; column < 10; ++column) {
            put(at, picture);
            at += 2;
        }
        at += 44;
    }
}

// The empty bar, under everything that play draws into it.
void draw_bar_ground(void) {
    uint8_t *at = BACKGROUND_MAP;
    for (uint8_t column = 0; column < 10; ++column) {
        put(at, PICTURE_BAR_BLANK);
        at += 2;
    }
    put(BACKGROUND_MAP + 8, PICTURE_BAR_COIN);
}

// One line of words in the middle of a row of the background.
static void draw_line(uint8_t row, const uint8_t *line) {
    uint8_t length = 0;
    while (line[length] < 0xFD) ++length;
    copy(BACKGROUND_MAP + ((uint16_t)row << 5) + ((20 - length) >> 1), line, length);
}

static const uint8_t title_top[] = {PICTURE_BIG_S, PICTURE_BIG_T, PICTURE_BIG_R, PICTURE_BIG_A, PICTURE_BIG_Y};
static const uint8_t title_bottom[] = {PICTURE_BIG_B, PICTURE_BIG_E, PICTURE_BIG_L, PICTURE_BIG_L};

void draw_title(void) {
    clear_map(PICTURE_BLANK);
    for (uint8_t i = 0; i < 5; ++i) put(BACKGROUND_MAP + 32 * 2 + 5 + 2 * i, title_top[i]);
    for (uint8_t i = 0; i < 4; ++i) put(BACKGROUND_MAP + 32 * 5 + 6 + 2 * i, title_bottom[i]);
    draw_line(9, words[WORDS_TITLE_LINE]);
    draw_line(12, words[WORDS_PRESS_START]);
    uint8_t *at = BACKGROUND_MAP + 32 * 14;
    for (uint8_t i = 0; i < 10; ++i) {
        put(at, i == 4 ? PICTURE_COW : i & 1 ? PICTURE_FLOWERS : PICTURE_GRASS);
        put(at + 64, i & 1 ? PICTURE_GRASS : PICTURE_TALL_GRASS);
        at += 2;
    }
}

static void draw_ending(uint8_t top, uint8_t line, uint8_t picture) {
    clear_map(PICTURE_BLANK);
    put(BACKGROUND_MAP + 32 * 4 + 9, picture);
    draw_line(7, words[top]);
    draw_line(9, words[line]);
    draw_line(13, words[WORDS_PRESS_START]);
}

void draw_game_over(void) {
    draw_ending(WORDS_GAME_OVER, WORDS_GAME_OVER_LINE, PICTURE_COW);
}

void draw_thanks(void) {
    draw_ending(WORDS_THANKS, WORDS_THANKS_LINE, PICTURE_COW);
}

static uint8_t map_picture(uint8_t number) {
    if (number == room) return PICTURE_MAP_HERE;
    return visited[number >> 3] & (uint8_t)(1 << (number & 7)) ? PICTURE_MAP_SEEN : PICTURE_MAP_UNSEEN;
}

// Into the window: the outdoor rooms on the left, the cave on the right.
void draw_map(void) {
    fill(WINDOW_MAP, LETTER_SPACE, 32 * 16);
    for (uint8_t number = 0; number < 20; ++number) {
        uint8_t row = number < 16 ? number >> 2 : 1 + ((number - 16) >> 1);
        uint8_t column = number < 16 ? number & 3 : 5 + (number & 1);
        put(WINDOW_MAP + (((uint16_t)row * 3 + 2) << 5) + 1 + column * 2 + (column >> 1), map_picture(number));
    }
}

// Another picture on one tile of the room, from the next vertical blank on.
void show_picture(uint8_t cell, uint8_t picture) {
    pictures[cell] = picture;
    if (change_count == CHANGES) return;
    change_cell[change_count] = cell;
    change_picture[change_count] = picture;
    ++change_count;
}

// In the vertical blank: the sprites, then at most one tile of the room or the bar.
void update_screen(void) {
    copy_sprites();
    if (change_count) {
        --change_count;
        uint8_t cell = change_cell[change_count], row = 0;
        while (cell >= 10) {
            cell -= 10;
            ++row;
        }
        put((uint8_t *)cell_row_at[row] + 2 * cell, change_picture[change_count]);
    } else if (bar_is_old) {
        bar_is_old = 0;
        draw_bar();
    }
}
