//! `make errors`: prints `docs/errors.md`.

fn main() {
    print!("{}", largesse::api::error_catalogue());
}
