//! One binary, one file per promise. Run them with `make test`, which starts a PostgreSQL and a Redis for them.

mod world;

mod a_bonus_is_paid_once;
mod a_key_is_answered_once;
mod failures_tell_nothing;
mod redis_may_fail;
mod the_command_line_keeps_its_word;
