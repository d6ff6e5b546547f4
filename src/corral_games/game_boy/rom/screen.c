// All that writes to video memory. While the LCD is on, that is possible only in the vertical blank: the game
// notes what changed, and update_screen() writes it there. Whole screens are drawn with the LCD off.
#include "game.h"
#include "tables.h"

#define CHANGES 8
// Background tiles 0-127 are at 9000, 128-255 before them at 8800.
#define BACKGROUND_TILE(number) ((uint8_t *)0x9000 + ((int16_t)(int8_t)(number) * 16))

uint8_t pictures[80];
uint8_t bar_parts, window_shown;
static uint8_t water_phase;
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
    const uint8_t *tile = picture_tiles + ((uint16_t)picture << 2);
    *at++ = *tile++;
    *at = *tile++;
    at += 31;
    *at++ = *tile++;
    *at = *tile;
}

// Only in the vertical blank: switching off elsewhere can damage the real LCD.
void lcd_off(void) {
    LCD_CONTROL = 0;
}

void lcd_on(void) {
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
    LCD_STATUS = 0x40; // tell of the line that is compared
    LINE_COMPARE = 1;
    BACKGROUND_SHADES = 0xE4;
    SPRITE_SHADES = 0xE0;
    SCROLL_X = 0;
    SCROLL_Y = 0;
    WINDOW_X = 7;
    WINDOW_Y = 96;
    SOUND_POWER = 0;
    copy(SPRITE_PICTURES, sprite_tiles, SPRITE_TILES * 16);
    copy((uint8_t *)0x9000, background_tiles, BACKGROUND_TILES > 128 ? 128 * 16 : BACKGROUND_TILES * 16);
#if BACKGROUND_TILES > 128
    copy((uint8_t *)0x8800, background_tiles + 128 * 16, (BACKGROUND_TILES - 128) * 16);
#endif
    hide_sprites();
}

// One row of the room, which is what the vertical blank has time for.
void draw_row(uint8_t row) {
    const uint8_t *picture = pictures + row_start[row];
    uint8_t *at = (uint8_t *)cell_row_at[row];
    for (uint8_t column = 0; column < 10; ++column) {
        put(at, *picture++);
        at += 2;
    }
    change_count = 0; // none of the old room's may come after it
}

static void draw_hearts(void) {
    uint8_t *at = BACKGROUND_MAP;
    uint8_t left = health;
    for (uint8_t heart = 0; heart < 3; ++heart) {
        put(at, left >= 2 ? PICTURE_HEART_FULL : left ? PICTURE_HEART_HALF : PICTURE_HEART_EMPTY);
        left = left >= 2 ? left - 2 : 0;
        at += 2;
    }
}

static void draw_coins(void) {
    uint8_t tens = 0, ones = coins;
    while (ones >= 10) {
        ones -= 10;
        ++tens;
    }
    BACKGROUND_MAP[11] = tall_digit_top[tens];
    BACKGROUND_MAP[12] = tall_digit_top[ones];
    BACKGROUND_MAP[32 + 11] = tall_digit_bottom[tens];
    BACKGROUND_MAP[32 + 12] = tall_digit_bottom[ones];
}

static void draw_things(void) {
    put(BACKGROUND_MAP + 15, keys ? PICTURE_BAR_KEY : PICTURE_BAR_BLANK);
    put(BACKGROUND_MAP + 18, chest_open ? PICTURE_BAR_BELL : PICTURE_BAR_BLANK);
}

void draw_bar(void) {
    draw_hearts();
    draw_coins();
    draw_things();
    bar_parts = 0;
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
static const uint8_t meadow[] = {
    PICTURE_TREE, PICTURE_GRASS, PICTURE_ROOF_LEFT, PICTURE_ROOF, PICTURE_ROOF_RIGHT,
    PICTURE_FLOWERS, PICTURE_GRASS, PICTURE_GRASS, PICTURE_FLOWERS, PICTURE_TREE,
    PICTURE_BUSH, PICTURE_FLOWERS, PICTURE_WALL_LEFT, PICTURE_HOUSE_DOOR, PICTURE_WALL_RIGHT,
    PICTURE_GRASS, PICTURE_COW, PICTURE_FENCE, PICTURE_FENCE, PICTURE_TALL_GRASS};

// What the title and both endings share: a white sky over the farm.
static void draw_meadow(void) {
    const uint8_t *picture = meadow;
    clear_map(PICTURE_BLANK);
    for (uint8_t row = 14; row < 18; row += 2) {
        uint8_t *at = BACKGROUND_MAP + ((uint16_t)row << 5);
        for (uint8_t column = 0; column < 10; ++column) {
            put(at, *picture++);
            at += 2;
        }
    }
}

static void draw_bell(uint8_t x, uint8_t y) {
    put_sprites(sprites, x, y, LOOK_BELL_1, 0);
    put_sprites(sprites + 2, x + 16, y, LOOK_BELL_2, 0);
    put_sprites(sprites + 4, x, y + 16, LOOK_BELL_3, 0);
    put_sprites(sprites + 6, x + 16, y + 16, LOOK_BELL_4, 0);
}

void draw_title(void) {
    draw_meadow();
    for (uint8_t i = 0; i < 5; ++i) put(BACKGROUND_MAP + 32 * 2 + 2 + 2 * i, title_top[i]);
    for (uint8_t i = 0; i < 4; ++i) put(BACKGROUND_MAP + 32 * 5 + 4 + 2 * i, title_bottom[i]);
    draw_line(8, words[WORDS_TITLE_LINE]);
    draw_line(11, words[WORDS_PRESS_START]);
    draw_bell(108, 4);
}

void draw_game_over(void) {
    draw_meadow();
    draw_line(4, words[WORDS_GAME_OVER]);
    draw_line(6, words[WORDS_GAME_OVER_LINE]);
    draw_line(11, words[WORDS_PRESS_START]);
}

void draw_thanks(void) {
    draw_meadow();
    put(BACKGROUND_MAP + 32 * 16 + 10, PICTURE_VILLAGER);
    draw_bell(64, 0);
    draw_line(7, words[WORDS_THANKS]);
    draw_line(9, words[WORDS_THANKS_LINE]);
    draw_line(11, words[WORDS_PRESS_START]);
}

static uint8_t map_picture(uint8_t number) {
    if (number == room) return PICTURE_MAP_HERE;
    return visited[number >> 3] & (uint8_t)(1 << (number & 7)) ? PICTURE_MAP_SEEN : PICTURE_MAP_UNSEEN;
}

static void draw_label(uint8_t *at, const uint8_t *line) {
    while (*line < 0xFD) *at++ = *line++;
}

// Half a picture of a room on the map: its upper or its lower tiles.
static void put_half(uint8_t *at, uint8_t number, uint8_t lower) {
    uint8_t picture = map_picture(number), corner = lower ? BOTTOM_LEFT : TOP_LEFT;
    at[0] = TILE(picture, corner);
    at[1] = TILE(picture, corner + 1);
}

// One row of tiles of the map, into the window: the fields on the left, the cave on the right.
void draw_map_row(uint8_t row) {
    uint8_t *at = WINDOW_MAP + ((uint16_t)row << 5);
    for (uint8_t i = 0; i < 20; ++i) at[i] = LETTER_SPACE;
    if (row == 2) {
        draw_label(at + 3, words[WORDS_MAP_FIELDS]);
        draw_label(at + 13, words[WORDS_MAP_CAVE]);
    }
    if (row < 4 || row >= 12) return;
    uint8_t number = (row - 4) >> 1, lower = row & 1;
    if (number < 2)
        for (uint8_t i = 0; i < 2; ++i) put_half(at + 13 + 2 * i, 16 + 2 * number + i, lower);
    for (uint8_t i = 0; i < 4; ++i) put_half(at + 2 + 2 * i, 4 * number + i, lower);
}

// Another picture on one tile of the room, from the next vertical blank on.
void show_picture(uint8_t cell, uint8_t picture) {
    pictures[cell] = picture;
    if (change_count == CHANGES) return;
    change_cell[change_count] = cell;
    change_picture[change_count] = picture;
    ++change_count;
}

static void copy_tile(uint8_t *to, const uint8_t *from) {
    for (uint8_t count = 16; count; --count) *to++ = *from++;
}

// The two halves of the water change places: the waves roll.
static void roll_water(void) {
    uint8_t left = TILE(PICTURE_WATER, TOP_LEFT), right = TILE(PICTURE_WATER, TOP_RIGHT);
    const uint8_t *first = background_tiles + ((uint16_t)left << 4);
    const uint8_t *second = background_tiles + ((uint16_t)right << 4);
    copy_tile(BACKGROUND_TILE(left), water_phase ? second : first);
    copy_tile(BACKGROUND_TILE(right), water_phase ? first : second);
}

// In the vertical blank: the sprites, then at most one other thing, since the time is short.
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
    } else if (bar_parts & BAR_HEARTS) {
        bar_parts &= ~BAR_HEARTS;
        draw_hearts();
    } else if (bar_parts) {
        bar_parts = 0;
        draw_coins();
        draw_things();
    } else if (((uint8_t)frames & 32) != water_phase) {
        water_phase ^= 32;
        roll_water();
    }
}
