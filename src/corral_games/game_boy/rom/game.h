// Everything that the parts of the game share: hardware registers, the status block, and who does what.
#pragma once
#include <stdint.h>

// ---- hardware ----
#define REGISTER(address) (*(volatile uint8_t *)(address))
#define JOYPAD REGISTER(0xFF00)
#define INTERRUPTS REGISTER(0xFF0F)
#define LCD_CONTROL REGISTER(0xFF40)
#define LCD_STATUS REGISTER(0xFF41)
#define LINE_COMPARE REGISTER(0xFF45)
#define SCROLL_Y REGISTER(0xFF42)
#define SCROLL_X REGISTER(0xFF43)
#define BACKGROUND_SHADES REGISTER(0xFF47)
#define SPRITE_SHADES REGISTER(0xFF48)
#define WINDOW_Y REGISTER(0xFF4A)
#define WINDOW_X REGISTER(0xFF4B)
#define SOUND_POWER REGISTER(0xFF26)

#define SPRITE_PICTURES ((uint8_t *)0x8000)
#define BACKGROUND_MAP ((uint8_t *)0x9800)
#define WINDOW_MAP ((uint8_t *)0x9C00)

// LCD on, window map at 9C00, background pictures at 8800-97FF, sprites of 8x16, sprites and background shown
#define LCD_ON 0xC7
#define LCD_WINDOW 0x20
#define LCD_SPRITES 0x02

// Buttons, as read by read_buttons(): 1 is held.
#define PAD_A 0x01
#define PAD_B 0x02
#define PAD_SELECT 0x04
#define PAD_START 0x08
#define PAD_RIGHT 0x10
#define PAD_LEFT 0x20
#define PAD_UP 0x40
#define PAD_DOWN 0x80
#define PAD_ARROWS 0xF0

// Tiles of a picture of 16x16.
enum { TOP_LEFT, TOP_RIGHT, BOTTOM_LEFT, BOTTOM_RIGHT };
#define TILE(picture, corner) (picture_tiles[4 * (picture) + (corner)])

// ---- the status block (addresses: status.s) ----
enum { TITLE, PLAY, DIALOGUE, DEAD, WON };
enum { DOWN, UP, LEFT, RIGHT };
enum { FREE, SOLID, WATER, TALL_GRASS, COIN, HEART, KEY, LOCKED, CHEST, VILLAGER, DOORWAY, SIGN, OPEN_CHEST, BEYOND };
enum { NOBODY, BURR, GOOSE, WISP, HEN };

struct enemy {
    uint8_t kind, x, y, hits;
};

extern uint8_t magic[2], mode, room, hero_x, hero_y, facing, health, max_health, coins, keys;
extern uint8_t door_open, chest_open, talks, in_dungeon, hurts, sword, shield_time, beaten, late;
extern uint16_t rng, frames;
extern uint8_t visited[3], coins_taken[3];
extern struct enemy enemies[4];
extern uint8_t around[4];
extern uint8_t tiles[80];

// ---- sprites: y, x, picture, flags; y = 0 hides one ----
struct sprite {
    uint8_t y, x, picture, flags;
};
#define FLIP_X 0x20
#define FLIP_Y 0x40
extern struct sprite sprites[40];
// Which sprite is whose. The first ones are drawn above the later ones.
enum { SPRITE_SWORD = 0, SPRITE_HERO = 2, SPRITE_ENEMIES = 4, SPRITE_PUFF = 12 };
// From room pixels to the LCD's: sprites are counted from (8, 16) outside of the screen, rooms from below the bar.
#define SPRITE_Y(y) ((y) + 32)
#define SPRITE_X(x) ((x) + 8)

// ---- crt0.s ----
void wait_for_vblank(void);
void wait_for_line(void);
void copy_sprites(void);

// ---- screen.c: all that writes to video memory ----
void screen_begin(void);
void lcd_off(void);
void lcd_on(void);
void hide_sprites(void);
void draw_row(uint8_t row);
void draw_bar(void);
void draw_bar_ground(void);
void draw_title(void);
void draw_game_over(void);
void draw_thanks(void);
void draw_map_row(uint8_t row);
void show_picture(uint8_t cell, uint8_t picture);
void update_screen(void);
extern uint8_t bar_parts, window_shown; // what of the bar is to be drawn anew
#define BAR_HEARTS 1
#define BAR_THINGS 2
extern uint8_t pictures[80];

// ---- rooms.c ----
void rooms_begin(void);
void enter_room(void);
void leave_to(uint8_t other_room, uint8_t x, uint8_t y);
void open_door(void);
void use_doorway(void);
void take_item(uint8_t cell);
void clear_cell(uint8_t cell);
void put_heart(uint8_t cell);
uint8_t cell_at(uint8_t x, uint8_t y);
extern uint8_t next_room, next_x, next_y;
extern const uint8_t row_start[8];
#define NO_ROOM 0xFF

// ---- hero.c ----
void hero_begin(void);
void hero_step(void);
void look_around(void);
void hero_hurt(uint8_t harm, uint8_t from_x, uint8_t from_y);
void draw_hero(void);
void put_sprites(struct sprite *at, uint8_t x, uint8_t y, uint8_t look, uint8_t flags);

// ---- enemies.c ----
void enemies_clear(void);
void enemies_add(uint8_t kind, uint8_t x, uint8_t y);
void enemies_step(void);
void draw_enemies(void);
void strike(uint8_t x, uint8_t y);
uint8_t roll(void);

// ---- dialogue.c ----
void face_and_act(void);
void open_chest(uint8_t cell);
uint8_t draw_box(void);
void dialogue_step(void);

// ---- main.c ----
extern uint8_t held, pressed;
