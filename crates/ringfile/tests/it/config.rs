//! Settings from a file and the environment: which one wins, what each changes, and what errors about bad ones say.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, Random, assert_content, content, has_registered_buffers, in_child, in_child_with,
    is_without_ring, page_size, record_warnings, skip, workers_are_forced,
};
use ringfile::buf::{HugePages, PoolError};
use ringfile::config::BufferMode;
use ringfile::metrics::{Metrics, OperationKind};
use ringfile::{Config, Error, File, OpenOptions, Pool, Route, WhenFull, block_on, thread_metrics};

const PAGE: usize = 4096;

fn config(text: &str) -> Config {
    Config::parse(text).unwrap()
}

/// Counts of one read.
fn counts_of_a_read(file: &File, pool: &Pool) -> Metrics {
    let before = ringfile::metrics();
    block_on(async {
        let page = file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
        assert_content(&page, 0);
    });
    ringfile::metrics() - before
}

#[test]
fn the_environment_wins_over_the_file_and_calls_over_both() {
    let name = "the_environment_wins_over_the_file_and_calls_over_both";
    let set_up = |child: &mut std::process::Command| {
        child.envs([("RINGFILE_DEPTH", "3"), ("RINGFILE_CAPACITY", "2MiB"), ("RINGFILE_DIRECT", "")]);
        child.envs([("RINGFILE_ROUTE", "inline"), ("RINGFILE_HUGE_PAGES", "never")]);
    };
    if !in_child_with(name, set_up) {
        return;
    }
    let folder = Folder::new();
    let text =
        "depth = 5\ncapacity = '1MiB'\nblock_size = 8192\ndirect = false\nroute = 'workers'\nworkers = 2";
    let loaded = Config::load(folder.file("ringfile.toml", text.as_bytes())).unwrap();
    let wanted = Config::new()
        .with_depth(3)
        .with_capacity(2 << 20)
        .with_block_size(8192)
        .with_direct(false)
        .with_route(Route::Inline)
        .with_workers(2)
        .with_huge_pages(HugePages::Never);
    assert_eq!(loaded, wanted);
    assert_eq!(config(text).depth(), Some(5), "the text alone");
    assert_eq!(config(text).with_env().unwrap(), wanted);
    let from_env = Config::from_env().unwrap();
    assert_eq!((from_env.depth(), from_env.block_size(), from_env.direct()), (Some(3), None, None));
    let capacity = |builder: ringfile::buf::PoolBuilder| builder.build().unwrap().metrics().capacity;
    assert_eq!(capacity(loaded.pool()), 2 << 20);
    assert_eq!(capacity(loaded.pool().capacity(4 << 20)), 4 << 20);
    assert_eq!(capacity(loaded.with_capacity(8 << 20).pool()), 8 << 20);
}

#[test]
fn a_wrong_variable_is_named() {
    let name = "a_wrong_variable_is_named";
    if !in_child_with(name, |child| _ = child.env("RINGFILE_DIRECT", "maybe")) {
        return;
    }
    let folder = Folder::new();
    let loaded = Config::load(folder.file("ringfile.toml", b"direct = true"));
    for error in [loaded.unwrap_err(), Config::from_env().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let said = "reading the environment: `RINGFILE_DIRECT` can't be maybe: give true or false";
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn misspelt_variables_are_reported_once_with_the_name_that_is_meant() {
    let name = "misspelt_variables_are_reported_once_with_the_name_that_is_meant";
    let set_up = |child: &mut std::process::Command| {
        child.envs([("RINGFILE_DEPHT", "4"), ("RINGFILE_DISABL", "ring"), ("ringfile_route", "ring")]);
        // A setting, one of a test, and names of other programs.
        child.envs([("RINGFILE_POOLING", "true"), ("RINGFILE_TEST_DEPTH", "4"), ("RINGFILE_HOME", "/")]);
        child.env("FILE_DEPTH", "4");
    };
    if !in_child_with(name, set_up) {
        return;
    }
    let warnings = record_warnings();
    let folder = Folder::new();
    for _ in 0..3 {
        assert_eq!(Config::from_env().unwrap().depth(), None);
        let loaded = Config::load(folder.file("ringfile.toml", b"direct = true")).unwrap();
        assert_eq!(loaded.direct(), Some(true));
    }
    let mut warnings = warnings.lock().unwrap().clone();
    warnings.sort();
    let said =
        |variable: &str, meant: &str| format!("`{variable}` is not a setting: did you mean `{meant}`?");
    let wanted = [
        said("RINGFILE_DEPHT", "RINGFILE_DEPTH"),
        said("RINGFILE_DISABL", "RINGFILE_DISABLE"),
        said("ringfile_route", "RINGFILE_ROUTE"),
    ];
    assert_eq!(warnings.len(), wanted.len(), "{warnings:?}");
    assert!(warnings.iter().zip(&wanted).all(|(warning, said)| warning.contains(said)), "{warnings:?}");
}

#[test]
fn settings_are_read_from_a_table_of_a_file_that_has_others() {
    let folder = Folder::new();
    let text = "depth = 'deep'\n[http]\nport = 80\n[system.memory_pool]\ncapacity = '1MiB'\ndepth = 5\n\
                [system.memory_pool.more]\n[[list]]\nroute = 1\n[a.b]\ndepht = 1\n[c]\n";
    let path = folder.file("server.toml", text.as_bytes());
    let load = |table| Config::load_table(&path, table).map_err(|error| error.to_string());
    let file = path.display();
    let error = load("system.memory_pool").unwrap_err();
    assert!(error.starts_with(&format!("reading line 7 of {file}: unknown table `more`")), "{error}");
    let error = load("a.b").unwrap_err();
    assert!(error.starts_with(&format!("reading line 11 of {file}: unknown field `depht`")), "{error}");
    for none in ["memory_pool", "system.other", "list", "depth", "http.port", "", "system."] {
        let error = Config::load_table(&path, none).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(
            error.to_string(),
            format!("reading the settings of {file}: there is no table `[{none}]`")
        );
    }
    assert_eq!(load("c").unwrap(), Config::from_env().unwrap());
    let path = folder.file("server.toml", text.replace("[system.memory_pool.more]\n", "").as_bytes());
    let loaded = Config::load_table(&path, "system.memory_pool").unwrap();
    assert_eq!((loaded.capacity(), loaded.depth()), (Some(1 << 20), Some(5)));
    // The mark that some editors put in front of UTF-8.
    let marked = folder.file("marked.toml", "\u{feff}depth = 7".as_bytes());
    assert_eq!(Config::load(marked).unwrap().depth(), Some(7));
}

#[test]
fn bad_settings_are_reported_with_their_line_and_the_allowed_values() {
    let folder = Folder::new();
    let load = |text: &str| -> Error {
        let path = folder.file("ringfile.toml", text.as_bytes());
        let error = Config::load(&path).unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidData, Some(&*path)), "{text}");
        assert!(!error.to_string().contains('\n'), "one line");
        error
    };
    let known = "known: capacity, huge_pages, alignment, when_full, outside_limit, pooling, depth, block_size, buffers, \
                 direct, route, workers, latencies, slow_after_us";
    let cases = [
        ("# first\n\ndepht = 4", "line 3", format!("unknown field `depht`: did you mean `depth`? {known}")),
        (
            "Block-Size = 1",
            "line 1",
            format!("unknown field `Block-Size`: did you mean `block_size`? {known}"),
        ),
        ("threads = 1", "line 1", format!("unknown field `threads`: remove it; {known}")),
        (
            "[pool]\ncapacity = 1",
            "line 1",
            format!("unknown table `pool`: `Config::load_table` reads settings in a table; {known}"),
        ),
        ("depth = \"16\"", "line 1", r#"`depth` can't be "16": give a whole number from 1 to 4096"#.into()),
        ("depth = 1.5", "line 1", "`depth` can't be 1.5: give a whole number from 1 to 4096".into()),
        ("\ndirect = 1", "line 2", "`direct` can't be 1: give true or false".into()),
        (
            "route = 'rink'",
            "line 1",
            r#"`route` can't be 'rink': give "auto", "ring", "inline", "workers" or "aio""#.into(),
        ),
        (
            "capacity = '''many\nbytes'''",
            "line 1",
            r#"`capacity` can't be '''many bytes''': give 4096 bytes or more, such as 67108864 or "64MiB""#
                .into(),
        ),
        (
            "depth = 1\ncapacity = 64MiB # all\n",
            "line 2",
            "`capacity = 64MiB # all`: string values must be quoted".into(),
        ),
        ("route = ring", "line 1", r#"words and units in quotes, as `capacity = "64MiB"`"#.into()),
        ("depth = 1\n\ndepth = 2", "line 3", "`depth = 2`: duplicate key; keep one".into()),
        ("[depth]", "line 1", "`depth` can't be a table: give a whole number".into()),
        // The first in the file, not in the alphabet.
        ("workers = true\nbuffers = 1", "line 1", "`workers` can't be true".into()),
    ];
    for (text, line, why) in cases {
        let error = load(text).to_string();
        assert!(error.starts_with(&format!("reading {line} of ")) && error.contains(&why), "{error}");
    }
}

#[test]
fn pools_are_aligned_go_outside_and_are_left_out_as_the_settings_say() {
    let aligned = config("alignment = '16KiB'").pool().build().unwrap();
    let buffer = aligned.get(1).unwrap();
    assert_eq!((buffer.as_ptr().addr() % (16 << 10), aligned.metrics().in_use), (0, 16 << 10));
    let page = page_size();
    let limit = 2 * page;
    let with_limit = config(&format!("capacity = {page}\nwhen_full = 'outside'\noutside_limit = {limit}"));
    assert_eq!(with_limit.when_full(), Some(WhenFull::Outside { limit }));
    let pool = with_limit.pool().build().unwrap();
    let buffers: Vec<_> = (0..3).map(|_| pool.get(page).unwrap()).collect();
    assert_eq!(pool.metrics().outside_bytes, limit);
    assert!(matches!(pool.get(1), Err(PoolError::Full { .. })));
    drop(buffers);
    let unlimited = config(&format!("capacity = {page}\nwhen_full = 'outside'"));
    assert_eq!(unlimited.when_full(), Some(WhenFull::Outside { limit: usize::MAX }));
    assert!(unlimited.pool().build().unwrap().get(1 << 20).is_ok());
    assert_eq!(config("outside_limit = 8192").when_full(), None, "a limit alone sets nothing");
    assert_eq!(config("when_full = 'wait'\noutside_limit = 8192").when_full(), Some(WhenFull::Wait));
    let without = config("pooling = false").pool().build().unwrap();
    let buffer = without.get(page).unwrap();
    assert_eq!((without.metrics().reserved, without.metrics().outside_bytes), (0, buffer.capacity()));
}

#[test]
fn files_are_measured_as_the_settings_say() {
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    let measured = |settings| {
        let config = config(settings);
        let files = [(); 2].map(|()| config.open_options().read(true).open_blocking(&path).unwrap());
        ringfile::block_on(files[0].read_at(Vec::with_capacity(7), 0)).unwrap();
        files.map(|file| file.latencies().map(|latencies| latencies.histogram(OperationKind::Read).count()))
    };
    assert_eq!(measured("latencies = true"), [Some(1), Some(0)]);
    assert_eq!(measured("latencies = true\nslow_after_us = 5000000"), [Some(1), Some(0)]);
    assert_eq!(measured("latencies = false\nslow_after_us = 5000000"), [None, None]);
    assert_eq!(config("slow_after_us = 20000").slow_after(), Some(Duration::from_millis(20)));
}

#[test]
fn a_file_that_holds_no_settings_is_an_error() {
    let folder = Folder::new();
    let error = Config::load(folder.path().join("none.toml")).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NotFound, Some(libc::ENOENT)));
    let text = error.to_string();
    assert!(text.contains("none.toml") && text.contains("--emit-config"), "{text}");
    assert_eq!(Config::load(folder.path()).unwrap_err().errno(), Some(libc::EISDIR));
    let endless = Config::load("/dev/zero").unwrap_err();
    assert!(endless.to_string().contains("/dev/zero: the file is longer than 1 MiB"), "{endless}");
    let binary = Config::load(folder.file("binary", &[0xff; 100])).unwrap_err();
    assert!(binary.to_string().contains("not text in UTF-8"), "{binary}");
    assert_eq!(Config::load(folder.file("empty", b"")).unwrap(), Config::from_env().unwrap());
}

/// Returns a random configuration, with or without each setting.
fn random_config(random: &mut Random) -> Config {
    let routes = [Route::Auto, Route::Ring, Route::Inline, Route::Workers, Route::Aio];
    let huge_pages = [HugePages::Auto, HugePages::Never, HugePages::Require];
    let limits = [1 << 20, usize::MAX].map(|limit| WhenFull::Outside { limit });
    let when_full = [WhenFull::Error, WhenFull::Wait, limits[0], limits[1]];
    let buffers = [BufferMode::Normal, BufferMode::Fixed, BufferMode::Vectored, BufferMode::VectoredFixed];
    let mut config = Config::new();
    for setting in 0..13 {
        let value = random.below(1 << 32) as usize >> random.below(32);
        config = match setting {
            _ if random.below(2) == 0 => config,
            0 => config.with_capacity(value << random.below(31)),
            1 => config.with_huge_pages(huge_pages[value % 3]),
            2 => config.with_depth(value),
            3 => config.with_block_size(value),
            4 => config.with_buffers(buffers[value % 4]),
            5 => config.with_direct(value.is_multiple_of(2)),
            6 => config.with_route(routes[value % 4]),
            7 => config.with_workers(value),
            8 => config.with_alignment(value),
            9 => config.with_when_full(when_full[value % 4]),
            10 => config.with_latencies(value.is_multiple_of(2)),
            11 => config.with_slow_after(std::time::Duration::from_micros(value as u64)),
            _ => config.with_pooling(value.is_multiple_of(2)),
        };
    }
    config
}

/// Text made of pieces of TOML, and of any characters.
fn random_text(random: &mut Random) -> String {
    const PIECES: [&str; 24] = [
        "depth",
        "capacity",
        "route",
        "direct",
        "=",
        " = ",
        "\n",
        "\"",
        "'",
        "'''",
        "[",
        "]",
        "[[",
        "{",
        "}",
        ".",
        ",",
        "#",
        "64MiB",
        "1e99",
        "-0x1",
        "true",
        "\"ring\"",
        "1979-05-27T07:32:00Z",
    ];
    (0..random.below(30))
        .map(|_| match random.below(4) {
            0 => char::from_u32(random.below(0x11_0000) as u32).unwrap_or('\0').to_string(),
            _ => PIECES[random.below(PIECES.len() as u64) as usize].to_owned(),
        })
        .collect()
}

#[test]
fn written_settings_are_read_back_unchanged_by_comments() {
    let mut random = Random::new();
    for _ in 0..2000 {
        let config = random_config(&mut random);
        assert_eq!(Config::parse(&config.to_string()).unwrap(), config);
        let comment = random_text(&mut random) + "\ndepth = 7\r\n\0";
        let text = config.to_toml_with(|_| Some(comment.clone()));
        assert_eq!(Config::parse(&text).unwrap(), config, "{text}");
    }
}

#[test]
fn f58_no_text_makes_reading_settings_panic() {
    let mut random = Random::new();
    for _ in 0..20_000 {
        let text = random_text(&mut random);
        if let Err(error) = Config::parse(&text) {
            let said = error.to_string();
            assert!(!said.contains('\n') && said.starts_with("reading line "), "{said:?} of {text:?}");
        }
    }
    for deep in ["[", "[[", "{", "a=[", "a={b=", "a."] {
        assert!(Config::parse(&deep.repeat(100_000)).is_err());
    }
}

#[test]
fn the_huge_pages_setting_applies_to_pools() {
    let flags = |pool: &Pool| -> String {
        let buffer = pool.get(4 << 20).unwrap();
        let at = buffer.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let address = |text| usize::from_str_radix(text, 16);
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) = (address(start), address(end))
            {
                is_inside = (start..end).contains(&at);
            }
            if is_inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        String::new()
    };
    let never = flags(&config("huge_pages = 'never'\ncapacity = '8m'").pool().build().unwrap());
    if never.is_empty() || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        skip(
            "the_huge_pages_setting_applies_to_pools",
            "this kernel has no transparent huge pages, or does not show them",
        );
    } else {
        assert!(never.contains(" nh"), "{never}");
        let auto = flags(&config("huge_pages = 'auto'\ncapacity = '8m'").pool().build().unwrap());
        assert!(!auto.contains(" nh"), "{auto}");
    }
    match config("huge_pages = 'require'\ncapacity = '64m'").pool().build() {
        Ok(pool) => assert!(pool.metrics().reserved > 0, "mapped at once"),
        Err(error) => assert!(matches!(error, PoolError::NoHugePages { .. }), "{error}"),
    }
}

#[test]
fn depth_and_block_size_settings_apply_to_appenders() {
    let folder = Folder::new();
    let file = File::create_blocking(folder.path().join("log")).unwrap();
    let (config, pool) = (config("depth = 1\nblock_size = '16k'"), Pool::new(4 << 20));
    block_on(async {
        let log = config.appender(&file, &pool, 0).await.unwrap();
        log.append(&content(0, 100)).await.unwrap();
        assert_eq!(pool.metrics().in_use, 16 << 10);
        let log = config.appender(&file, &Pool::new(4 << 20), 0).block(PAGE).await.unwrap();
        log.append(&content(0, PAGE)).await.unwrap();
        log.flush().await.unwrap();
        assert_eq!(log.metrics().writes, 1, "a call wins");
    });
}

#[test]
fn depth_and_block_size_settings_apply_to_readers() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, 1 << 20))).unwrap();
    let (config, pool) = (config("depth = 5\nblock_size = '16k'"), Pool::new(4 << 20));
    block_on(async {
        let mut reader = config.reader(&file, &pool);
        let piece = reader.next().await.unwrap().unwrap();
        assert_eq!((piece.len(), pool.metrics().in_use), (16 << 10, 5 * (16 << 10)));
        let mut reader = config.reader(&file, &Pool::new(4 << 20)).block(PAGE);
        assert_eq!(reader.next().await.unwrap().unwrap().len(), PAGE, "a call wins");
    });
}

#[test]
fn buffers_are_registered_or_not() {
    let name = "buffers_are_registered_or_not";
    if is_without_ring() {
        return skip(name, "it is about the ring, which RINGFILE_DISABLE switches off");
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    // Before Linux 5.19, pool memory is not registered.
    let registers = has_registered_buffers();
    for (word, is_fixed) in
        [("normal", false), ("fixed", true), ("vectored", false), ("vectored-fixed", true)]
    {
        let config = config(&format!("buffers = '{word}'\nroute = 'ring'"));
        let file = config.open_options().read(true).open_blocking(&path).unwrap();
        let pool = config.pool().build().unwrap();
        let fixed_ops = block_on(async {
            let before = thread_metrics();
            file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
            (thread_metrics() - before).fixed_ops
        });
        let memory = pool.metrics();
        let tried = memory.registered_regions + memory.refused_registrations;
        assert_eq!(tried, usize::from(is_fixed && registers), "{word}");
        assert_eq!(fixed_ops, memory.registered_regions as u64, "{word}");
    }
}

#[test]
fn the_direct_setting_applies_to_opened_files() {
    let folder = Folder::inside(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.file("data", &content(0, PAGE));
    let open = |text: &str| config(text).open_options().read(true).open_blocking(&path);
    assert!(!open("direct = false").unwrap().is_direct() && !open("").unwrap().is_direct());
    match (open("direct = true"), OpenOptions::new().read(true).direct(true).open_blocking(&path)) {
        (Ok(file), _) => assert!(file.is_direct() && file.alignment().bytes > 1),
        (Err(error), Err(same)) => {
            assert_eq!(error.to_string(), same.to_string());
            skip("the_direct_setting_applies_to_opened_files", error);
        }
        (Err(error), Ok(_)) => panic!("{error}"),
    }
    let buffered =
        config("direct = true").open_options().read(true).direct(false).open_blocking(&path).unwrap();
    assert!(!buffered.is_direct(), "a call wins");
}

#[test]
fn the_route_setting_applies_to_opened_files() {
    let name = "the_route_setting_applies_to_opened_files";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let (path, pool) = (folder.file("data", &content(0, PAGE)), Pool::new(1 << 20));
    let taken = |text: &str| {
        let file = config(text).open_options().read(true).open_blocking(&path).unwrap();
        let counts = counts_of_a_read(&file, &pool);
        (counts.inline_ops, counts.worker_ops)
    };
    assert_eq!(taken("route = 'workers'"), (0, 1));
    if workers_are_forced() {
        return skip(
            name,
            "with RINGFILE_DISABLE=io_uring,aio, workers carry out everything, whatever a file's route",
        );
    }
    assert_eq!(taken("route = 'inline'"), (1, 0));
    if !is_without_ring() {
        assert_eq!(taken("route = 'ring'"), (0, 0));
    }
}

#[test]
fn applied_settings_set_the_default_route_and_the_number_of_workers() {
    let name = "applied_settings_set_the_default_route_and_the_number_of_workers";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let (path, pool) = (folder.file("data", &content(0, PAGE)), Pool::new(1 << 20));
    config("route = 'inline'").apply();
    let inline = u64::from(!workers_are_forced());
    assert_eq!(counts_of_a_read(&File::open_blocking(&path).unwrap(), &pool).inline_ops, inline);
    config("workers = 2\nroute = 'workers'").apply();
    assert_eq!(counts_of_a_read(&File::open_blocking(&path).unwrap(), &pool).worker_ops, 1);
    config("depth = 1").apply();
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, 0..u64::MAX, 8, Act::Hold);
    let file = OpenOptions::new().read(true).direct(true).open_blocking(server.path()).unwrap();
    let run = std::thread::spawn(move || {
        let mut batch = ringfile::Batch::new();
        for page in 0..20 {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
        }
        batch.run()
    });
    server.wait_held(2);
    // Time in which no third worker may begin; threads are not simulated.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.held(), 2, "what is missing stays as it is");
    server.release();
    assert!(run.join().unwrap().into_iter().all(|done| done.result.unwrap() == PAGE));
}
