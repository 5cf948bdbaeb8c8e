//! Largesse.
pub mod amount;
pub mod api;
pub mod calendar;
pub mod config;
pub mod cooldown;
pub mod entity;
pub mod error;
pub mod ledger;
pub mod member;
pub mod operations;
