// Stray Bell: what happens in each frame, and how the game goes from the title to play and to its ends.
#include "game.h"
#include "tables.h"

#define START_ROOM 5
#define START_X 64
#define START_Y 80

uint8_t held, pressed;
static uint8_t shown_mode, map_shown, map_wanted, map_rows;
static uint8_t rows_left; // of a room that is being drawn over the last one: the game stands still

static void read_buttons(void) {
    uint8_t before = held;
    JOYPAD = 0x20; // arrows; the lines need a moment, hence the second reading
    held = JOYPAD;
    held = (uint8_t)(~JOYPAD << 4);
    JOYPAD = 0x10; // A, B, SELECT, START
    uint8_t buttons = JOYPAD;
    buttons = JOYPAD;
    held |= ~buttons & 0x0F;
    JOYPAD = 0x30;
    pressed = held & ~before;
}

static void begin_game(void) {
    mode = PLAY;
    frames = 0;
    rooms_begin();
    hero_begin();
    leave_to(START_ROOM, START_X, START_Y);
}

// In the vertical blank. After another screen everything is drawn with the LCD off; a room is drawn over another one
// row by row in the blanks that follow, so that the screen is never empty.
static void change_room(void) {
    hide_sprites();
    if (shown_mode == PLAY) {
        copy_sprites();
        enter_room();
        rows_left = 8;
        return;
    }
    lcd_off();
    window_shown = 0;
    shown_mode = PLAY;
    draw_bar_ground();
    draw_bar();
    enter_room();
    for (uint8_t row = 0; row < 8; ++row) draw_row(row);
    draw_hero();
    draw_enemies();
    lcd_on();
}

static void draw_next_row(void) {
    draw_row(8 - rows_left);
    if (--rows_left) return;
    draw_hero();
    draw_enemies();
}

static void change_screen(void) {
    lcd_off();
    window_shown = 0;
    shown_mode = mode;
    hide_sprites();
    if (mode == TITLE) draw_title();
    else if (mode == DEAD) draw_game_over();
    else draw_thanks();
    lcd_on();
}

// In the vertical blank, one row of tiles in each; then the window is shown.
static void draw_map(void) {
    draw_map_row(map_rows);
    if (++map_rows < 16) return;
    map_wanted = 0;
    map_shown = window_shown = 1;
    WINDOW_Y = 16;
    LCD_CONTROL = (uint8_t)((LCD_ON | LCD_WINDOW) & ~LCD_SPRITES);
}

static void hide_map(void) {
    map_shown = window_shown = 0;
    LCD_CONTROL = LCD_ON;
}

static void play(void) {
    if (held & PAD_SELECT) {
        map_wanted = !map_shown;
        return;
    }
    map_wanted = map_rows = 0;
    if (map_shown) hide_map();
    ++frames;
    hero_step();
    look_around();
    if (mode != PLAY) return;
    enemies_step();
    draw_hero();
    if (!health) mode = DEAD;
}

// In the vertical blank: show what the last frame changed.
static void draw(void) {
    if (rows_left) draw_next_row();
    else if (mode == PLAY && next_room != NO_ROOM) change_room();
    else if (map_wanted) draw_map();
    else if (mode != shown_mode && mode != PLAY && mode != DIALOGUE) change_screen();
    else if (shown_mode == PLAY && !(mode == DIALOGUE && draw_box())) update_screen();
}

// Drawing is done in the vertical blank, all else after it. So whoever looks at the status block when a picture is
// complete never sees it half changed, and buttons pressed then count at once.
void main(void) {
    magic[0] = 'S';
    magic[1] = 'B';
    mode = shown_mode = TITLE;
    max_health = 6;
    next_room = NO_ROOM;
    rng = 0x5EED;
    wait_for_vblank();
    screen_begin();
    change_screen();
    for (;;) {
        wait_for_vblank();
        draw();
        wait_for_line();
        if (rows_left) continue;
        read_buttons();
        switch (mode) {
        case PLAY: play(); break;
        case DIALOGUE: dialogue_step(); break;
        default:
            roll();
            if (pressed & PAD_START) begin_game();
        }
    }
}
