//! One binary, one file per promise. Run them with `make test`, which starts a PostgreSQL and a Redis for them.

mod world;

mod a_bad_token_is_refused;
mod a_bonus_is_paid_once;
mod a_client_may_hang_up;
mod a_document_can_be_named_by_its_hash;
mod a_document_may_not_ask_for_too_much;
mod a_key_is_answered_once;
mod a_payment_is_credited_once;
mod a_payment_is_read_strictly;
mod a_provider_can_sign_as_the_page_says;
mod a_socket_keeps_its_limits;
mod a_wallet_is_watched_live;
mod a_webhook_is_believed_if_it_is_signed;
mod an_identity_providers_keys_are_followed;
mod bad_input_costs_nothing;
mod each_outcome_decides_its_lock;
mod events_leave_if_they_are_true;
mod failures_tell_nothing;
mod generated_clients_understand_every_answer;
mod imports_run_downward;
mod lists_page_both_ways;
mod money_is_neither_made_nor_lost;
mod no_input_brings_the_front_down;
mod payments_are_in_the_books;
mod processes_may_be_killed;
mod redis_may_fail;
mod the_app_may_give_and_take_back;
mod the_command_line_keeps_its_word;
mod the_schema_is_what_the_file_says;
mod trusted_documents_run_alone;
mod webhooks_arrive_in_order;
mod webhooks_can_be_verified;
mod webhooks_stay_outside;
mod what_is_anothers_cannot_be_seen;
mod what_may_be_forgotten_is;
