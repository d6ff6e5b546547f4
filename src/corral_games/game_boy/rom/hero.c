// The hero: walking, bumping, picking up, the sword, being hurt.
#include "game.h"
#include "tables.h"

#define SPEED 2
#define PUSH_SPEED 4
#define PUSH_FRAMES 4
#define SWING_FRAMES 12
#define SHIELD_FRAMES 40

// The box that bumps into things: 12x10 at the feet.
#define BOX_LEFT 2
#define BOX_RIGHT 13
#define BOX_TOP 6
#define BOX_BOTTOM 15
#define MAX_X 144
#define MAX_Y 112

static uint8_t push_frames, push_way, steps;

void hero_begin(void) {
    facing = DOWN;
    health = max_health = 6;
    coins = keys = door_open = chest_open = talks = 0;
    hurts = sword = shield_time = beaten = 0;
    push_frames = steps = 0;
}

// What is next to the hero: below, above, to the left, to the right.
void look_around(void) {
    uint8_t cell = cell_at(hero_x + 8, hero_y + 10);
    around[DOWN] = hero_y > 101 ? BEYOND : tiles[cell + 10];
    around[UP] = hero_y < 6 ? BEYOND : tiles[cell - 10];
    around[LEFT] = hero_x < 8 ? BEYOND : tiles[cell - 1];
    around[RIGHT] = hero_x > 135 ? BEYOND : tiles[cell + 1];
}

// Whether the hero may stand on a tile. Things are taken by touch; the door and the chest open to who walks into them.
static uint8_t enters(uint8_t cell) {
    switch (tiles[cell]) {
    case FREE:
    case TALL_GRASS:
    case DOORWAY:
        return 1;
    case COIN:
    case HEART:
    case KEY:
        take_item(cell);
        return 1;
    case LOCKED:
        if (keys) {
            --keys;
            door_open = 1;
            bar_parts |= BAR_THINGS;
            open_door();
        }
        return 0;
    case CHEST:
        open_chest(cell);
        return 0;
    default:
        return 0;
    }
}

static uint8_t is_met(uint8_t cell) {
    return tiles[cell] == VILLAGER || tiles[cell] == SIGN;
}

// One move. Where only one corner of the box is in the way, the hero slides around it, but not past somebody or
// something straight ahead that can be talked to or read.
static void move(uint8_t way, uint8_t speed) {
    uint8_t first, second, edge;
    if (way >= LEFT) {
        if (way == LEFT) {
            if (hero_x < speed) return;
            edge = hero_x + BOX_LEFT - speed;
        } else {
            if (hero_x > MAX_X - speed) return;
            edge = hero_x + BOX_RIGHT + speed;
        }
        first = enters(cell_at(edge, hero_y + BOX_TOP));
        second = enters(cell_at(edge, hero_y + BOX_BOTTOM));
        if (first && second) {
            if (way == LEFT) hero_x -= speed;
            else hero_x += speed;
        } else if (is_met(cell_at(edge, hero_y + 10))) {
            return;
        } else if (first && hero_y >= SPEED) {
            hero_y -= SPEED;
        } else if (second && hero_y <= MAX_Y - SPEED) {
            hero_y += SPEED;
        }
    } else {
        if (way == UP) {
            if (hero_y < speed) return;
            edge = hero_y + BOX_TOP - speed;
        } else {
            if (hero_y > MAX_Y - speed) return;
            edge = hero_y + BOX_BOTTOM + speed;
        }
        first = enters(cell_at(hero_x + BOX_LEFT, edge));
        second = enters(cell_at(hero_x + BOX_RIGHT, edge));
        if (first && second) {
            if (way == UP) hero_y -= speed;
            else hero_y += speed;
        } else if (is_met(cell_at(hero_x + 8, edge))) {
            return;
        } else if (first && hero_x >= SPEED) {
            hero_x -= SPEED;
        } else if (second && hero_x <= MAX_X - SPEED) {
            hero_x += SPEED;
        }
    }
}

// Walking on at the border leads to the next room. Outdoors four rooms make a row, in the cave two.
static uint8_t leave(void) {
    uint8_t row = in_dungeon ? 2 : 4, other, x = hero_x, y = hero_y;
    switch (facing) {
    case DOWN:
        if (y != MAX_Y) return 0;
        other = room + row;
        y = 0;
        break;
    case UP:
        if (y != 0) return 0;
        other = room - row;
        y = MAX_Y;
        break;
    case LEFT:
        if (x != 0) return 0;
        other = room - 1;
        x = MAX_X;
        break;
    default:
        if (x != MAX_X) return 0;
        other = room + 1;
        x = 0;
        break;
    }
    if (other >= 20 || (other >= 16) != in_dungeon) return 0;
    leave_to(other, x, y);
    return 1;
}

static void walk(void) {
    if (held & PAD_RIGHT) facing = RIGHT;
    else if (held & PAD_LEFT) facing = LEFT;
    else if (held & PAD_UP) facing = UP;
    else facing = DOWN;
    ++steps;
    if (leave()) return;
    move(facing, SPEED);
}

// The sword reaches one tile ahead: it beats enemies and cuts tall grass.
static void swing(void) {
    uint8_t x = hero_x, y = hero_y;
    switch (facing) {
    case DOWN: y += 14; break;
    case UP: y -= 14; break;
    case LEFT: x -= 14; break;
    default: x += 14; break;
    }
    strike(x, y);
    if (sword == SWING_FRAMES) {
        x += 8;
        y += 8;
        if (x < 160 && y < 128) {
            uint8_t cell = cell_at(x, y);
            if (tiles[cell] == TALL_GRASS) clear_cell(cell);
        }
    }
    --sword;
}

// Pushed away from where it hurt, along the longer way.
void hero_hurt(uint8_t harm, uint8_t from_x, uint8_t from_y) {
    uint8_t across = hero_x > from_x ? hero_x - from_x : from_x - hero_x;
    uint8_t along = hero_y > from_y ? hero_y - from_y : from_y - hero_y;
    if (across > along) push_way = hero_x > from_x ? RIGHT : LEFT;
    else push_way = hero_y > from_y ? DOWN : UP;
    push_frames = PUSH_FRAMES;
    shield_time = SHIELD_FRAMES;
    sword = 0;
    health = health > harm ? health - harm : 0;
    if (hurts != 255) ++hurts;
    bar_parts |= BAR_HEARTS;
}

void hero_step(void) {
    if (shield_time) --shield_time;
    if (push_frames) {
        --push_frames;
        move(push_way, PUSH_SPEED);
    } else if (sword) {
        swing();
    } else if (pressed & PAD_B) {
        sword = SWING_FRAMES;
        swing();
    } else if (pressed & PAD_A) {
        face_and_act();
    } else if (held & PAD_ARROWS) {
        walk();
    }
    // Whether walking or pushed.
    if (next_room == NO_ROOM && tiles[cell_at(hero_x + 8, hero_y + 10)] == DOORWAY) use_doorway();
}

// Two sprites of 8x16 side by side, mirrored by exchanging them.
void put_sprites(struct sprite *at, uint8_t x, uint8_t y, uint8_t look, uint8_t flags) {
    x = SPRITE_X(x);
    y = SPRITE_Y(y);
    at[0].y = y;
    at[0].flags = flags;
    at[1].y = y;
    at[1].flags = flags;
    at[0].picture = look;
    at[1].picture = look + 2;
    if (flags & FLIP_X) {
        at[1].x = x;
        at[0].x = x + 8;
    } else {
        at[0].x = x;
        at[1].x = x + 8;
    }
}

static void draw_sword(void) {
    switch (facing) {
    case DOWN: put_sprites(sprites + SPRITE_SWORD, hero_x, hero_y + 14, LOOK_SWORD_UP, FLIP_Y); break;
    case UP: put_sprites(sprites + SPRITE_SWORD, hero_x, hero_y - 14, LOOK_SWORD_UP, 0); break;
    case LEFT: put_sprites(sprites + SPRITE_SWORD, hero_x - 14, hero_y + 2, LOOK_SWORD_LEFT, 0); break;
    default: put_sprites(sprites + SPRITE_SWORD, hero_x + 14, hero_y + 2, LOOK_SWORD_LEFT, FLIP_X); break;
    }
}

void draw_hero(void) {
    if (sword) draw_sword();
    else sprites[SPRITE_SWORD].y = sprites[SPRITE_SWORD + 1].y = 0;
    if (shield_time & 4) {
        sprites[SPRITE_HERO].y = sprites[SPRITE_HERO + 1].y = 0;
        return;
    }
    uint8_t other_leg = steps & 8;
    if (facing == DOWN) put_sprites(sprites + SPRITE_HERO, hero_x, hero_y, LOOK_HERO_DOWN, other_leg ? FLIP_X : 0);
    else if (facing == UP) put_sprites(sprites + SPRITE_HERO, hero_x, hero_y, LOOK_HERO_UP, other_leg ? FLIP_X : 0);
    else
        put_sprites(sprites + SPRITE_HERO, hero_x, hero_y, other_leg ? LOOK_HERO_LEFT_STEP : LOOK_HERO_LEFT,
                    facing == RIGHT ? FLIP_X : 0);
}
