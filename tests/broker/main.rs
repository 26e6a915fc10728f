//! The broker's answers, asked through its handler without sockets, on a store in memory whose time a test moves.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

mod admin;
mod configuration;
mod consuming;
mod hostile;
mod network;
mod pulling;
mod reports;
mod reserved;
mod retrying;
mod rig;
mod sending;
mod state;
