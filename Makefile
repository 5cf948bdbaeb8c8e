# `make` alone starts the demo: the shortest way from a fresh clone to a page in the browser.
.DEFAULT_GOAL := run
.PHONY: help run test storm bench schema errors metrics fmt clean-web

# What follows the command's own arguments: `make run ARGS='--listen 127.0.0.1:9000'`, `make test ARGS=cooldown`.
ARGS ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

run: ## Start the demo on SQLite, with GraphiQL (the default target)
	@scripts/web-assets
	cargo run -- demo $(ARGS)

test: ## Run every check and test, against a PostgreSQL and a Redis of their own
	@scripts/test $(ARGS)

# The example starts the built binary as its server, and an example's build alone does not make that binary.
storm: ## Storm a demo server with simultaneous requests and check its books
	cargo build
	cargo run --example storm -- $(ARGS)

bench: ## Measure throughput and latency
	bench/run $(ARGS)

# Through a second file: a build that fails must not leave an empty schema behind.
schema: ## Write schema.graphql from the code
	@trap 'rm -f schema.graphql.new' EXIT; \
	cargo run -- schema >schema.graphql.new && mv schema.graphql.new schema.graphql

errors: ## Write docs/errors.md from the code
	@trap 'rm -f docs/errors.md.new' EXIT; \
	cargo run --example errors >docs/errors.md.new && mv docs/errors.md.new docs/errors.md

metrics: ## Write docs/metrics.md from the code
	@trap 'rm -f docs/metrics.md.new' EXIT; \
	cargo run --example metrics >docs/metrics.md.new && mv docs/metrics.md.new docs/metrics.md

fmt: ## Format the code
	cargo fmt --all

clean-web: ## Remove the files that npm fetched
	rm -rf web/node_modules tests/*/node_modules
