//! What Playhouse's actors say: vocabulary, events, folds and the pure machines.
