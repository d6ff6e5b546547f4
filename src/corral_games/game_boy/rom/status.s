; The status block: what others may read of the game. These are the game's own variables, kept at fixed addresses.

        .module status
        .globl  _magic, _mode, _room, _hero_x, _hero_y, _facing, _health, _max_health, _coins, _keys
        .globl  _door_open, _chest_open, _talks, _in_dungeon, _hurts, _sword, _shield_time, _beaten
        .globl  _rng, _frames, _late, _visited, _coins_taken, _enemies, _around, _tiles, _sprites

_magic       = 0xC000   ; 2 bytes
_mode        = 0xC002
_room        = 0xC003
_hero_x      = 0xC004
_hero_y      = 0xC005
_facing      = 0xC006
_health      = 0xC007
_max_health  = 0xC008
_coins       = 0xC009
_keys        = 0xC00A
_door_open   = 0xC00B
_chest_open  = 0xC00C
_talks       = 0xC00D
_in_dungeon  = 0xC00E
_hurts       = 0xC010
_sword       = 0xC012
_shield_time = 0xC013
_beaten      = 0xC014
_rng         = 0xC016   ; 2 bytes
_frames      = 0xC018   ; 2 bytes
_late        = 0xC01A
_visited     = 0xC020   ; 3 bytes
_coins_taken = 0xC024   ; 3 bytes
_enemies     = 0xC030   ; 4 of {kind, x, y, hits}
_around      = 0xC040   ; 4 bytes
_tiles       = 0xC050   ; 80 bytes

_sprites     = 0xC100   ; not part of the block: 40 sprites of 4 bytes, copied to the LCD in every frame
