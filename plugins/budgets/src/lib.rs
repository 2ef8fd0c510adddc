//! What agents and trees of agents may spend, and a fair share of model requests.
