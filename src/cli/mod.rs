//! The `latermq` command: its subcommands, and the one place where the parts of the broker are put together.

mod bench;
mod broker;
mod check;
mod cluster;
mod configure;
mod consume;
mod demo;
mod failure;
mod levels;
mod limits;
mod listen;
mod log;
mod namesrv;
mod parked;
mod print;
mod send;
mod topic;

use std::{io::Write, process::ExitCode};

use clap::{Parser, Subcommand};

use failure::Failure;

/// A message broker for messages that must arrive later
///
/// latermq speaks the RocketMQ protocol: Java, Go and C++ clients of RocketMQ work with it unchanged. Start a broker with `latermq broker`,
/// see it work with `latermq demo`.
#[derive(Debug, Parser)]
#[command(name = "latermq", version, max_term_width = 120, after_help = failure::EXIT_CODES, subcommand_required = true)]
struct CommandLine {
    #[command(subcommand)]
    command: CommandName,
}

#[derive(Debug, Subcommand)]
enum CommandName {
    Broker(broker::BrokerArgs),
    Namesrv(namesrv::NamesrvArgs),
    Send(send::SendArgs),
    Consume(consume::ConsumeArgs),
    Levels(levels::LevelsArgs),
    Topic(topic::TopicArgs),
    Parked(parked::ParkedArgs),
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Bench(bench::BenchArgs),
}

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    // clap ends the process itself for --help (0) and for wrong arguments: 2, but 1 where 2 means something else.
    let CommandLine { command } = CommandLine::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|name| name == "check") {
            // There is nobody left to tell.
            let _ = error.print();
            std::process::exit(1)
        }
        error.exit()
    });
    let result = match &command {
        CommandName::Broker(args) => broker::run(args),
        CommandName::Namesrv(args) => namesrv::run(args),
        CommandName::Send(args) => send::run(args),
        CommandName::Consume(args) => consume::run(args),
        CommandName::Levels(args) => levels::run(args),
        CommandName::Topic(args) => topic::run(args),
        CommandName::Parked(args) => parked::run(args),
        CommandName::Check(args) => check::run(args),
        CommandName::Demo(args) => demo::run(args),
        CommandName::Bench(args) => bench::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure);
            failure.exit_code()
        }
    }
}

fn report(failure: &Failure) {
    let mut stderr = std::io::stderr().lock();
    for line in failure.to_string().lines() {
        // There is nobody left to tell.
        let _ = writeln!(stderr, "latermq: {line}");
    }
}
