//! What each layer costs on its own. `cargo bench --bench layers -- WORD` runs those whose name holds a word.

mod delay;
mod frame;
mod record;
mod store;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
        .configure_from_args();
    frame::benches(&mut criterion);
    record::benches(&mut criterion);
    store::benches(&mut criterion);
    delay::benches(&mut criterion);
    criterion.final_summary();
}
