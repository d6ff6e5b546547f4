"""The hooks that Corral itself calls around each iteration, one kind in each file; ``hook_order`` has their order."""
