//! RocketMQ remoting: bytes in and values out, values in and bytes out. Nothing here does IO or knows a clock.
//!
//! [`frame`] cuts [`Command`]s out of a stream and writes them; a command's header fields ([`ExtFields`]) become typed
//! values by [`header`], its body by [`body`]. [`json`] is the dialect of JSON that RocketMQ's clients write and read.

mod binary_header;
pub mod body;
mod codes;
mod command;
mod ext;
pub mod frame;
pub mod header;
pub mod json;
mod json_header;
mod language;
mod text;

pub use codes::{RequestCode, ResponseCode};
pub use command::{Body, Command, Encoding, Guard, VERSION};
pub use ext::{EXT_FIELDS_MAX, ExtFields, ExtValue, HeaderError};
pub use frame::{FRAME_BYTES_MAX, FrameError};
pub use language::Language;
pub use text::Text;
