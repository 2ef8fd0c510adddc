//! Policies: plugins that steer the loop at its hook points, each by a rule of its own.
