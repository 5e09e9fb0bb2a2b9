"""Users' own tests on ranks: the marker ``cplife``, the fixtures ``cplife_world`` and
``cplife_mesh``.

The hooks load when a marked test is collected, the worlds when something first runs on ranks;
importing this package loads neither.
"""
