//! `make metrics`: prints `docs/metrics.md`.

fn main() {
    print!("{}", largesse::signals::catalogue());
}
