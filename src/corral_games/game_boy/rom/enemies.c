// Enemies, and the hen, which harms nobody and cannot be harmed, walk from tile to tile. Two of the four are moved in each frame, so everything here costs half.
#include "game.h"
#include "tables.h"

#define NEAR 64
#define STUN 12
#define PUFF_FRAMES 16

// What the status block does not show of an enemy.
struct gait {
    uint8_t way;      // DOWN, UP, LEFT, RIGHT
    uint8_t left;     // pixels to the next tile
    uint8_t rest;     // turns to wait
    uint8_t pushed;   // hit by the sword, on its way back
};

static struct gait gaits[4];
static uint8_t count, turn, puff_frames;
static const uint8_t start_hits[5] = {0, 1, 2, 2, 1};
static const uint8_t harm[5] = {0, 1, 1, 2, 0};
static const uint8_t speed[5] = {0, 1, 2, 2, 1};
static const uint8_t look[5] = {0, LOOK_BURR, LOOK_GOOSE, LOOK_WISP, LOOK_HEN};
static const uint8_t opposite[4] = {UP, DOWN, RIGHT, LEFT};

// The game's only source of chance (xorshift, all 65,535 states but 0).
uint8_t roll(void) {
    uint16_t state = rng;
    if (!state) state = 1;
    state ^= state << 7;
    state ^= state >> 9;
    state ^= state << 8;
    rng = state;
    return (uint8_t)(state >> 8) ^ (uint8_t)state;
}

void enemies_clear(void) {
    count = turn = puff_frames = 0;
    for (uint8_t i = 0; i < 4; ++i) {
        enemies[i].kind = enemies[i].x = enemies[i].y = enemies[i].hits = 0;
        gaits[i].way = gaits[i].left = gaits[i].pushed = 0;
        gaits[i].rest = 8;
    }
}

void enemies_add(uint8_t kind, uint8_t x, uint8_t y) {
    if (count == 4) return;
    struct enemy *who = enemies + count;
    who->kind = kind;
    who->x = x;
    who->y = y;
    who->hits = start_hits[kind];
    ++count;
}

// Whether an enemy on a whole tile can go on that way; if so, it sets out.
static uint8_t set_out(uint8_t number, uint8_t way) {
    uint8_t x = enemies[number].x, y = enemies[number].y;
    uint8_t cell = cell_at(x, y);
    switch (way) {
    case DOWN:
        if (y >= 112) return 0;
        cell += 10;
        break;
    case UP:
        if (y == 0) return 0;
        cell -= 10;
        break;
    case LEFT:
        if (x == 0) return 0;
        --cell;
        break;
    default:
        if (x >= 144) return 0;
        ++cell;
        break;
    }
    if (tiles[cell] != FREE && tiles[cell] != TALL_GRASS) return 0;
    gaits[number].way = way;
    gaits[number].left = 16;
    return 1;
}

static uint8_t distance(uint8_t a, uint8_t b) {
    return a > b ? a - b : b - a;
}

// Towards the hero, along the longer way if that is free.
static uint8_t follow(uint8_t number) {
    uint8_t x = enemies[number].x, y = enemies[number].y;
    uint8_t across = distance(x, hero_x), along = distance(y, hero_y);
    if (across >= NEAR || along >= NEAR) return 0;
    uint8_t sideways = x > hero_x ? LEFT : RIGHT;
    uint8_t upright = y > hero_y ? UP : DOWN;
    if (across > along) return set_out(number, sideways) || (along > 4 && set_out(number, upright));
    return set_out(number, upright) || (across > 4 && set_out(number, sideways));
}

// On a whole tile: where to now.
static void decide(uint8_t number) {
    struct gait *gait = gaits + number;
    uint8_t kind = enemies[number].kind;
    if (kind == GOOSE && follow(number)) return;
    uint8_t chance = roll();
    if (kind == WISP) {
        if (chance & 0x1C && set_out(number, gait->way)) return;
        if (!set_out(number, chance & 3)) gait->rest = 4;
        return;
    }
    if (chance & 0x10 || !set_out(number, chance & 3)) gait->rest = 8 + (chance >> 4);
}

static void advance(uint8_t number) {
    struct gait *gait = gaits + number;
    struct enemy *who = enemies + number;
    if (gait->rest) {
        --gait->rest;
        return;
    }
    if (!gait->left) {
        if (gait->pushed) {
            gait->pushed = 0;
            gait->rest = STUN;
            return;
        }
        decide(number);
        if (!gait->left) return;
    }
    uint8_t pixels = gait->pushed ? 4 : speed[who->kind];
    if (pixels > gait->left) pixels = gait->left;
    gait->left -= pixels;
    switch (gait->way) {
    case DOWN: who->y += pixels; break;
    case UP: who->y -= pixels; break;
    case LEFT: who->x -= pixels; break;
    default: who->x += pixels; break;
    }
}

static void draw(uint8_t number) {
    struct enemy *who = enemies + number;
    uint8_t bob = frames & 16 ? 1 : 0;
    uint8_t flags = (who->kind == GOOSE || who->kind == HEN) && gaits[number].way == RIGHT ? FLIP_X : 0;
    put_sprites(sprites + SPRITE_ENEMIES + 2 * number, who->x, who->y - bob, look[who->kind], flags);
}

// Every enemy moves in every second frame.
void enemies_step(void) {
    turn ^= 1;
    for (uint8_t number = turn; number < count; number += 2) {
        struct enemy *who = enemies + number;
        if (!who->kind) continue;
        advance(number);
        draw(number);
        if (!shield_time && who->kind != HEN && distance(who->x, hero_x) < 12 && distance(who->y, hero_y) < 12)
            hero_hurt(harm[who->kind], who->x, who->y);
    }
    if (puff_frames && !--puff_frames) sprites[SPRITE_PUFF].y = sprites[SPRITE_PUFF + 1].y = 0;
}

static void vanish(uint8_t number) {
    struct enemy *who = enemies + number;
    uint8_t cell = cell_at(who->x + 8, who->y + 8);
    struct sprite *at = sprites + SPRITE_ENEMIES + 2 * number;
    at[0].y = at[1].y = 0;
    put_sprites(sprites + SPRITE_PUFF, who->x, who->y, LOOK_PUFF, 0);
    puff_frames = PUFF_FRAMES;
    who->kind = who->x = who->y = 0;
    if (beaten != 255) ++beaten;
    if (tiles[cell] == FREE && !(roll() & 3)) put_heart(cell);
}

// The sword's tip at (x, y): who is there loses a hit and flies back.
void strike(uint8_t x, uint8_t y) {
    for (uint8_t number = 0; number < count; ++number) {
        struct enemy *who = enemies + number;
        struct gait *gait = gaits + number;
        if (!who->kind || gait->pushed || distance(who->x, x) >= 14 || distance(who->y, y) >= 14) continue;
        if (who->kind != HEN && !--who->hits) {
            vanish(number);
            continue;
        }
        gait->rest = 0;
        gait->pushed = 1;
        if (!gait->left) {
            set_out(number, facing);
        } else if (gait->way == opposite[facing]) {
            gait->way = facing;
            gait->left = 16 - gait->left;
        }
    }
}

void draw_enemies(void) {
    for (uint8_t number = 0; number < count; ++number) draw(number);
}
