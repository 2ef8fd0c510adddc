//! What a Playhouse plugin may use: handles, hook points, registries, scopes and the seams.
