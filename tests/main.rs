//! One binary, one file per promise. Run them with `make test`, which starts a PostgreSQL and a Redis for them.

mod world;

mod a_bonus_is_paid_once;
mod a_client_may_hang_up;
mod a_key_is_answered_once;
mod each_outcome_decides_its_lock;
mod money_is_neither_made_nor_lost;
