// Rooms: filled in from the tables when entered, changed by what the hero takes and opens.
#include "game.h"
#include "tables.h"

uint8_t next_room, next_x, next_y;
static uint8_t hearts_taken[3];
static const uint8_t bit[8] = {1, 2, 4, 8, 16, 32, 64, 128};
const uint8_t row_start[8] = {0, 10, 20, 30, 40, 50, 60, 70};

void rooms_begin(void) {
    for (uint8_t i = 0; i < 3; ++i) visited[i] = coins_taken[i] = hearts_taken[i] = 0;
    next_room = NO_ROOM;
}

// The cell of a pixel of the room.
uint8_t cell_at(uint8_t x, uint8_t y) {
    return row_start[y >> 4] + (x >> 4);
}

void clear_cell(uint8_t cell) {
    tiles[cell] = FREE;
    show_picture(cell, in_dungeon ? PICTURE_FLOOR : PICTURE_GRASS);
}

void put_heart(uint8_t cell) {
    tiles[cell] = HEART;
    show_picture(cell, in_dungeon ? PICTURE_HEART_ON_FLOOR : PICTURE_HEART);
}

// What has been taken or opened earlier is no longer there.
static void remove_taken(void) {
    for (uint8_t i = 0; i < COIN_COUNT; ++i)
        if (coin_room[i] == room && coins_taken[i >> 3] & bit[i & 7]) clear_cell(coin_cell[i]);
    for (uint8_t i = 0; i < HEART_COUNT; ++i)
        if (heart_room[i] == room && hearts_taken[i >> 3] & bit[i & 7]) clear_cell(heart_cell[i]);
    if (room == KEY_ROOM && (keys || door_open)) clear_cell(KEY_CELL);
    if (room == LOCKED_ROOM && door_open) open_door();
    if (room == CHEST_ROOM && chest_open) {
        tiles[CHEST_CELL] = OPEN_CHEST;
        show_picture(CHEST_CELL, PICTURE_OPEN_CHEST);
    }
}

// All of a room but its picture on the screen.
void enter_room(void) {
    room = next_room;
    hero_x = next_x;
    hero_y = next_y;
    next_room = NO_ROOM;
    in_dungeon = room >= 16;
    visited[room >> 3] |= bit[room & 7];
    const uint8_t *from = room_cells + (((uint16_t)room << 6) + ((uint16_t)room << 4));
    uint8_t *tile = tiles;
    uint8_t *picture = pictures;
    enemies_clear();
    for (uint8_t y = 0; y < 128; y += 16) {
        for (uint8_t x = 0; x < 160; x += 16) {
            uint8_t cell = *from++;
            *tile++ = cell_kind[cell];
            *picture++ = cell_picture[cell];
            if (cell_walker[cell]) enemies_add(cell_walker[cell], x, y);
        }
    }
    remove_taken();
    look_around();
}

// From the next frame on the hero is elsewhere.
void leave_to(uint8_t other_room, uint8_t x, uint8_t y) {
    next_room = other_room;
    next_x = x;
    next_y = y;
}

void open_door(void) {
    tiles[LOCKED_CELL] = DOORWAY;
    show_picture(LOCKED_CELL, PICTURE_DOORWAY);
}

// Through the opened door into the cave, or back out. The hero then stands before the other end.
void use_doorway(void) {
    if (room == LOCKED_ROOM)
        leave_to(DOORWAY_ROOM, (DOORWAY_CELL % 10) << 4, ((DOORWAY_CELL / 10) << 4) - 16);
    else
        leave_to(LOCKED_ROOM, (LOCKED_CELL % 10) << 4, ((LOCKED_CELL / 10) << 4) + 16);
}

// A coin, a heart or the key.
void take_item(uint8_t cell) {
    uint8_t kind = tiles[cell];
    if (kind == COIN) {
        ++coins;
        for (uint8_t i = 0; i < COIN_COUNT; ++i)
            if (coin_room[i] == room && coin_cell[i] == cell) coins_taken[i >> 3] |= bit[i & 7];
    } else if (kind == KEY) {
        ++keys;
    } else {
        if (health == max_health) return;
        health = health + 2 > max_health ? max_health : health + 2;
        for (uint8_t i = 0; i < HEART_COUNT; ++i)
            if (heart_room[i] == room && heart_cell[i] == cell) hearts_taken[i >> 3] |= bit[i & 7];
    }
    clear_cell(cell);
    bar_parts |= kind == HEART ? BAR_HEARTS : BAR_THINGS;
}
