//! Tells clients which broker has which topic.
//!
//! It knows brokers only by what they register, whether they live in this process or elsewhere.

mod options;

pub use options::NameServerOptions;
