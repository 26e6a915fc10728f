//! latermq: a message broker for messages that must arrive *later*. It speaks the RocketMQ remoting protocol.
//!
//! # Map of the modules
//!
//! A lower layer never knows an upper one; `tests/layers.rs` holds the directions below.
//!
//! | module | what it is | what it does not know |
//! | --- | --- | --- |
//! | [`model`] | values that obey their own rules: offsets, [`model::Timestamp`], properties | everything else |
//! | [`mutation`] | protective lines that a test can switch off | everything else |
//! | [`record`] | the message record: the same bytes in the commit log and in a pull reply | files, time |
//! | [`mod@env`] | the only doors outside: clocks, directory, files; all unsafe code | what is in the files |
//! | [`protocol`] | RocketMQ remoting, bytes in and bytes out | sockets, the store |
//! | [`store`] | commit log, consume queues, index, dispatch, durability, recovery, and the plugin seam | sockets, delays |
//! | [`delay`] | delayed messages, a plugin of the store | sockets, the broker |
//! | [`remoting`] | sockets: server, connection, client | what a request means |
//! | [`broker`] | what a client may ask | delays: it only sees the store |
//! | [`namesrv`] | route table and its requests | the store, the broker |
//! | [`mod@bench`] | a load generator for any RocketMQ broker | the broker |
//! | [`config`] | `broker.conf`, checked, to the options of every layer | how the layers work |
//! | [`cli`] | the subcommands; the one place where the parts are put together | |

#![warn(missing_docs)]

pub mod bench;
pub mod broker;
pub mod cli;
pub mod config;
pub mod delay;
pub mod env;
pub mod model;
pub mod mutation;
pub mod namesrv;
pub mod protocol;
pub mod record;
pub mod remoting;
pub mod store;
