//! On a terminal: nothing wraps or is cut off at any width, and Ctrl-C leaves no progress bar behind.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::support::{
    installed, ring_is_forbidden, ringfile, routes, skip, terminal, wait_for_work, wait_until,
};

/// Returns what a terminal of this width shows of an output, and the lines that it had to break.
fn on_screen(output: &str, width: usize) -> (String, Vec<String>) {
    // As high as an output can be, so that none of it is gone.
    let [rows, columns] = [1000, width as u16].map(|count| NonZero::new(count).expect("some"));
    let mut terminal = vt100::Parser::new(rows, columns, 0);
    terminal.process(output.as_bytes());
    let rows: Vec<String> = terminal.screen().rows(0, width as u16).collect();
    let wrapped = (0..).zip(&rows).filter(|&(row, _)| terminal.screen().row_wrapped(row));
    (rows.join("\n").trim_end().to_string(), wrapped.map(|(_, row)| row.clone()).collect())
}

/// Returns a program on its own terminal, and the side that shows what a person would see.
fn on_terminal(program: &Command, width: usize) -> (Child, File) {
    let (screen, side) = terminal(width as u16);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(program.get_program()).args(program.get_args()).env("TERM", "xterm");
    let end = || Stdio::from(side.try_clone().expect("its other end"));
    let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("the program starts");
    (child, screen)
}

/// The output of a program, read as it comes: a full terminal would stop the program, and Ctrl-C drops unread output.
struct Shown {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Shown {
    fn on(master: &File) -> Shown {
        let (mut master, bytes) = (master.try_clone().expect("another descriptor"), Arc::default());
        let theirs: Arc<Mutex<Vec<u8>>> = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // EIO: nobody has the other end open any more.
            while let Ok(count @ 1..) = master.read(&mut piece) {
                theirs.lock().expect("nobody panicked").extend(&piece[..count]);
            }
        });
        Shown { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("nobody panicked")).into_owned()
    }

    /// Waits until the program has ended, and returns all its output.
    fn all(self) -> String {
        let Shown { bytes, reader } = self;
        reader.join().expect("it is read");
        String::from_utf8_lossy(&bytes.lock().expect("nobody panicked")).into_owned()
    }
}

#[test]
fn nothing_wraps_or_is_cut_off() {
    if !installed("setsid") {
        return skip("there is no setsid");
    }
    let two = if ring_is_forbidden() { "auto,inline" } else { "auto,ring" };
    let commands = [
        "file --rw randread --iodepth 16 --against pread --rounds 2",
        "batch --engines ringfile-blocking,ringfile-tokio,ringfile-queue --buffers normal,fixed",
        "multiread --engines ringfile,pread --batch 10,1000",
    ];
    for command in commands {
        for (width, route) in [(40, two), (60, two), (80, two), (100, &*routes().join(","))] {
            let options = "--size 4m --duration 5ms --warmup 0s --numjobs 2 --route";
            let program = ringfile(&format!("perf {command} {options} {route}"));
            let (mut child, master) = on_terminal(&program, width);
            let output = Shown::on(&master).all();
            assert!(child.wait().expect("the program ends").success(), "{output}");
            let (text, wrapped) = on_screen(&output, width);
            // A path is one word, however long.
            let wrapped = wrapped.iter().find(|line| !line.contains("/ringfile-perf-"));
            assert_eq!(wrapped, None, "{width} columns: {text}");
            for title in ["engine", "jobs", "route", "IOPS", "mean", "p50", "p99", "max", "CPU µs", "A/A"] {
                assert!(text.contains(title), "{title}, {width} columns: {text}");
            }
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{text}");
            assert!(!text.contains("left  "), "the bar is gone: {text}");
        }
    }
}

#[test]
fn ctrl_c_leaves_no_bar() {
    if !installed("setsid") {
        return skip("there is no setsid");
    }
    for (command, engine) in [("batch", "ringfile-blocking"), ("multiread", "ringfile")] {
        for width in [60, 100] {
            let options = "--size 4m --cache warm --duration 10m --warmup 0s --numjobs 1 --batch 8";
            let program = ringfile(&format!("perf {command} {options} --engines {engine}"));
            let (mut child, mut master) = on_terminal(&program, width);
            let shown = Shown::on(&master);
            wait_for_work(child.id(), "ringfile-0");
            // The bar is drawn twice a second.
            wait_until("no bar is drawn", || shown.so_far().contains(" left  "));
            master.write_all(b"\x03").expect("a key is pressed");
            let output = shown.all();
            assert_eq!(child.wait().expect("the program ends").code(), Some(130), "{output}");
            assert!(output.contains(" left  ") && output.contains("^C"), "there was a bar: {output:?}");
            let (text, wrapped) = on_screen(&output, width);
            assert!(wrapped.iter().all(|line| line.contains("/ringfile-perf-")), "{text}");
            assert!(text.contains("\n|engine"), "{text}");
            assert!(!text.contains("left  ") && !text.contains("^C"), "{text}");
            assert!(text.ends_with("error: interrupted") && text.contains(engine), "{text}");
        }
    }
}
