//! Tells clients which broker has which topic.
//!
//! It knows brokers only by what they register, whether they live in this process or elsewhere.

mod name_server;
mod options;
mod routes;

pub use name_server::NameServer;
pub use options::NameServerOptions;
pub use routes::Registration;
