//! `latermq check`: is a store sound, and what would become of it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{
    configure::{ConfigArgs, Configured},
    failure::{Failure, chain},
    levels::due,
    print::{self, Output, Paint},
    send::now_ms,
};
use crate::{
    broker::audit_tables,
    config::{Origin, Settings},
    delay::{DelaySummary, LEVELS_KEY, LevelAudit, LevelScheduler, LevelSummary, RealQueue, RealTopics},
    env::{Directory, Env, FsDirectory, SystemClock},
    model::{DelayText, PhysicalOffset, QueueId, Timestamp},
    store::{
        ClockJumps, Finding, Grade, Repaired, SET_ASIDE_FOLDER, StateFile, StoreAudit, StoreError, StoreOptions, audit,
        detect_lengths, keep_brokers_out, repair,
    },
};

/// How long a check runs before it shows how far it is.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// Check a store while no broker runs on it: whether it is sound, what waits in it, what is wrong
///
/// Reads the whole log once and compares all else with it: queues, index, checkpoint, delay progress, consumer offsets. Nothing is written
/// unless --repair is given. It does not run while a broker has the store.
///
/// Exit codes: 0 the store is sound (what a kill or a power cut leaves is sound: the next start makes it good); 1 it could not be checked, or
/// the arguments were wrong; 2 damage was found. With --repair: 0 if the store was or is now sound, 2 if damage is left that cannot be repaired.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Folder of the store, storePathRootDir of its broker
    store: PathBuf,
    /// Build queues, index and checkpoint anew from the log, and move unusable files to the folder latermq.bad. The log is never changed
    #[arg(long)]
    repair: bool,
    /// Also say what Apache RocketMQ would do otherwise than latermq on this store
    #[arg(long)]
    for_apache: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What a look at a store gave.
struct Checked {
    store: StoreAudit,
    delay: DelaySummary,
    /// Whether the table of delay levels is the default one, since none was named.
    table_is_default: bool,
    /// State files that cannot be used.
    unusable: Vec<PathBuf>,
}

pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    check(args).map_err(|failure| match failure {
        // Code 2 means damage here, and nothing else.
        Failure::Misused(text) => Failure::Failed(text),
        other => other,
    })
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let mut config = args.config.clone();
    config.set("storePathRootDir", &args.store.display().to_string());
    let Configured { settings, .. } = config.load()?;
    if config.print_config {
        return Ok(print::line(settings.to_explained_text().trim_end())?);
    }
    let mut checked = look(args, &settings)?;
    let mut repaired = None;
    if args.repair {
        repaired = Some(mend(args, &settings, &checked)?);
        checked = look(args, &settings)?;
    }
    match args.output {
        Output::Json => print_json(args, &checked, repaired.as_ref())?,
        Output::Text => print_text(args, &checked, repaired.as_ref())?,
    }
    match checked.store.findings.damage {
        0 => Ok(()),
        1 => Err(Failure::Damaged("the store is damaged: 1 finding".to_owned())),
        damage => Err(Failure::Damaged(format!("the store is damaged: {damage} findings"))),
    }
}

fn not_checked(args: &CheckArgs, error: &StoreError) -> Failure {
    let hint = match error {
        StoreError::FileLength { .. } => "; name the broker.conf of this store with -c",
        _ => "",
    };
    Failure::failed(format!("cannot check {}: {}{hint}", args.store.display(), chain(error)))
}

/// How the store's own broker opens it.
fn store_options(settings: &Settings, directory: &dyn Directory) -> Result<Result<StoreOptions, StoreError>, Failure> {
    let mut options = settings.store_options()?;
    let is_set = |key: &str| settings.origin(key).is_some_and(|origin| *origin != Origin::Default);
    Ok(detect_lengths(directory, &mut options, is_set).map(|()| options))
}

fn look(args: &CheckArgs, settings: &Settings) -> Result<Checked, Failure> {
    let failed = |error: StoreError| not_checked(args, &error);
    let directory = FsDirectory::open_read_only(&args.store)
        .map_err(|error| Failure::failed(format!("cannot read the store {}: {error}", args.store.display())))?;
    let directory: Arc<dyn Directory> = Arc::new(directory);
    let _lock = keep_brokers_out(&*directory).map_err(failed)?;
    let options = store_options(settings, &*directory)?.map_err(failed)?;
    let env = Env { clock: Arc::new(SystemClock::new()), directory: Arc::clone(&directory), fatal: Arc::new(|_| ()) };
    let file = StateFile::new(Arc::clone(&directory), Path::new("config").join(LevelAudit::FILE));
    let mut levels = LevelAudit::new(settings.delay_options()?.levels, &file, ClockJumps::load(&directory));

    let began = Instant::now();
    let mut progress: Option<ProgressBar> = None;
    let mut told = |done: u64, total: u64| {
        if progress.is_none() && began.elapsed() >= PROGRESS_AFTER {
            let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}");
            let bar = ProgressBar::new(total);
            progress = Some(if let Ok(style) = style { bar.with_style(style) } else { bar });
        }
        if let Some(bar) = &progress {
            bar.set_position(done);
        }
    };
    let mut store = audit(&options, &env, &mut levels, &mut told).map_err(failed)?;
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    let delay = levels.finish(&mut store, Timestamp(now_ms()));
    let parse = |text: &str| LevelAudit::parse_file(text);
    let unusable = audit_tables(&directory, &mut store, &[(LevelAudit::FILE, &parse)]).map_err(failed)?;
    let table_is_default = settings.origin(LEVELS_KEY).is_none_or(|origin| *origin == Origin::Default);
    Ok(Checked { store, delay, table_is_default, unusable })
}

/// A repair delivers nothing.
struct NoTopics;

impl RealTopics for NoTopics {
    fn resolve(&self, _: &str, queue_id: u32, _: PhysicalOffset) -> RealQueue {
        RealQueue::Deliver(QueueId(queue_id))
    }
}

fn mend(args: &CheckArgs, settings: &Settings, checked: &Checked) -> Result<Repaired, Failure> {
    if checked.store.index_is_unknown {
        let text = "cannot repair it: maxHashSlotNum and maxIndexNum are not those of its index files; name the broker.conf of this store with -c";
        return Err(Failure::failed(format!("{}: {text}", args.store.display())));
    }
    let failed = |error: StoreError| not_checked(args, &error);
    let directory = FsDirectory::open(&args.store)
        .map_err(|error| Failure::failed(format!("cannot open the store {}: {error}", args.store.display())))?;
    let options = store_options(settings, &directory)?.map_err(failed)?;
    let env = Env { clock: Arc::new(SystemClock::new()), directory: Arc::new(directory), fatal: Arc::new(|_| ()) };
    let scheduler = LevelScheduler::new(settings.delay_options()?, Arc::new(NoTopics));
    repair(&options, &env, vec![Arc::new(scheduler)], &checked.unusable).map_err(failed)
}

fn print_json(args: &CheckArgs, checked: &Checked, repaired: Option<&Repaired>) -> Result<(), Failure> {
    let mut value = json!({
        "sound": checked.store.findings.is_sound(), "store": checked.store, "delay": checked.delay,
        "delayTableIsDefault": checked.table_is_default,
        "repaired": repaired.is_some(), "setAside": repaired.map(|repaired| &repaired.set_aside),
    });
    if args.for_apache {
        value["apacheWould"] = apache(checked).into();
    }
    Ok(print::json(&value)?)
}

/// How long messages of a level wait: as they were told, or else as the table says.
fn delay_text(level: &LevelSummary, table_is_default: bool) -> String {
    let text = |ms: u64| DelayText(Duration::from_millis(ms)).to_string();
    match (&level.waiting_ms[..], level.delay_ms) {
        ([], None) => "gone".to_owned(),
        ([], Some(ms)) if table_is_default => format!("{} by default", text(ms)),
        ([], Some(ms)) => text(ms),
        (waiting, _) => waiting.iter().map(|ms| text(*ms)).collect::<Vec<_>>().join(", "),
    }
}

fn apache(checked: &Checked) -> Vec<String> {
    checked.store.apache_cuts.iter().chain(&checked.delay.apache).cloned().collect()
}

fn print_text(args: &CheckArgs, checked: &Checked, repaired: Option<&Repaired>) -> Result<(), Failure> {
    let paint = Paint::stdout();
    let Checked { store, delay, .. } = checked;
    if let Some(repaired) = repaired {
        print::line("queues, index and checkpoint were built anew from the log")?;
        for path in &repaired.set_aside {
            print::line(format!("moved to {SET_ASIDE_FOLDER}: {path}"))?;
        }
    }
    for Finding { grade, part, place, text } in &store.findings.list {
        let word = match grade {
            Grade::Damage => paint.bad("DAMAGE"),
            Grade::Mends => "mends".to_owned(),
            Grade::Note => paint.faint("note"),
        };
        print::line(format!("{word}  {part}: {place}: {text}"))?;
    }
    if store.findings.left_out > 0 {
        print::line(format!("{} more findings are not shown", store.findings.left_out))?;
    }
    let log = &store.log;
    print::line(format!(
        "log: {} records, from {} to {}, in {} segments; {} bytes are damaged",
        log.records, log.first, log.end, log.segments, log.damaged_bytes
    ))?;
    let from = store.checkpoint.map_or_else(|| "the beginning of the log".to_owned(), |position| position.to_string());
    let stop = if store.stopped_cleanly { "was stopped cleanly" } else { "was killed, or its machine was" };
    print::line(format!("the broker {stop}; the next start reads from {from}"))?;
    print::line(format!(
        "{} queues with {} sound entries; {} sound index entries",
        store.queues, store.queue_entries, store.index_entries
    ))?;
    let retention = &store.retention;
    let pinned = retention.pinned_from.map_or_else(String::new, |from| {
        format!(
            "; what waits keeps the log from {from} on, {} bytes, and {} of them",
            retention.pinned_bytes, retention.pinned_segments
        )
    });
    print::line(format!("{} segments are older than fileReservedTime{pinned}", retention.expired_segments))?;
    let now = now_ms();
    let waiting: Vec<_> = delay.levels.iter().filter(|level| level.pending > 0).collect();
    let pending: u64 = waiting.iter().map(|level| level.pending).sum();
    let parked: u64 = delay.parked.values().sum();
    print::line(format!("{pending} messages wait, {} were restored, {parked} are parked", delay.restored))?;
    for (reason, count) in &delay.parked {
        print::line(format!("  parked, {reason}: {count}"))?;
    }
    if !waiting.is_empty() {
        let rows: Vec<Vec<String>> = waiting
            .iter()
            .map(|level| {
                vec![
                    level.level.to_string(),
                    delay_text(level, checked.table_is_default),
                    level.pending.to_string(),
                    level.pending_bytes.to_string(),
                    level.next_deliver_at.map_or_else(String::new, |at| due(at - now)),
                ]
            })
            .collect();
        print::table(&[">LEVEL", ">DELAY", ">PENDING", ">BYTES", "NEXT DUE"], &rows)?;
    }
    if args.for_apache {
        let would = apache(checked);
        if checked.table_is_default && pending > 0 {
            print::line(
                "messageDelayLevel was not named: what follows is said for the default table; name the broker.conf of this store with -c",
            )?;
        }
        if would.is_empty() {
            print::line("Apache RocketMQ would do as latermq does")?;
        }
        for would in would {
            print::line(format!("Apache RocketMQ would {would}"))?;
        }
    }
    if store.findings.is_sound() {
        print::line(paint.good("the store is sound"))?;
    } else if !args.repair {
        print::line("--repair builds anew what is derived from the log; damage of the log itself stays")?;
    }
    Ok(())
}
