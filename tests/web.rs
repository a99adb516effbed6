//! Metrics and the status page: what is told is what INFO tells, strangers and browsers led here by others are refused, and slow or
//! many peers are bounded.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::server::{Server, free_port, has_program};
use common::wait::until;

/// A server with metrics on a port beside its own.
fn start(args: &[&str]) -> (Server, u16) {
    let port = free_port();
    let text = port.to_string();
    (Server::tarn(&[args, &["--metrics-port", &text]].concat()), port)
}

/// What comes of these bytes, until the server closes.
fn ask_raw(port: u16, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap_or_else(|e| panic!("{e}"));
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap_or_else(|e| panic!("{e}"));
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

/// Status and body of a GET with more headers.
fn get(port: u16, path: &str, headers: &str) -> (String, String) {
    let reply = ask_raw(port, format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{headers}\r\n").as_bytes());
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{reply}"));
    (head.split(' ').nth(1).unwrap_or_default().to_owned(), body.to_owned())
}

/// Some of everything, so that most that can be told is.
fn work(server: &Server) {
    let mut client = server.client();
    client.call("CLIENT SETNAME <b>\"x\"&amp;</script>");
    for n in 0..200 {
        client.call(&format!("SET key:{n} value"));
        client.call(&format!("GET key:{}", n * 2));
    }
    client.call("PEXPIRE key:1 1");
    client.call("HSET hash f v");
    client.call("INCR hash");
    client.call("BGSAVE");
}

/// Names and numbers; each metric has its help and type before it, once.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut numbers, mut types) = (BTreeMap::new(), BTreeMap::new());
    let mut helped = BTreeSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, sentence) = help.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(helped.insert(name.to_owned()) && sentence.ends_with('.'), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(["counter", "gauge"].contains(&kind) && types.insert(name.to_owned(), kind).is_none(), "{line}");
        } else {
            let (series, number) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap_or_default();
            assert_eq!(types.get(name), Some(&if name.ends_with("_total") { "counter" } else { "gauge" }), "{line}");
            let number = number.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(helped.contains(name) && numbers.insert(series.to_owned(), number).is_none(), "{line}");
        }
    }
    numbers
}

#[test]
fn metrics_are_those_of_info() {
    let (server, port) = start(&[]);
    work(&server);
    let mut client = server.client();
    until("the flush is over", || client.info("persistence", "rdb_bgsave_in_progress") == 0);
    until("a key has expired", || client.info("stats", "expired_keys") == 1);
    let (status, text) = get(port, "/metrics", "");
    assert_eq!(status, "200");
    let numbers = parse(&text);
    assert!(numbers.len() > 120, "{}", numbers.len());
    for (section, fact, metric) in [
        ("clients", "connected_clients", "tarn_connected_clients"),
        ("stats", "total_connections_received", "tarn_connections_received_total"),
        ("stats", "keyspace_hits", "tarn_keyspace_hits_total"),
        ("stats", "expired_keys", "tarn_expired_keys_total"),
        ("tarn", "tarn_flushes", "tarn_flushes_total"),
        ("tarn", "tarn_memory_budget", "tarn_memory_budget_bytes"),
        ("tarn", "tarn_table_objects", "tarn_table_objects"),
    ] {
        assert_eq!(numbers.get(metric), Some(&(client.info(section, fact) as f64)), "{metric}");
    }
    assert_eq!(numbers.get("tarn_command_calls_total{command=\"set\"}"), Some(&200.0));
    assert_eq!(numbers.get("tarn_error_count_total{error=\"WRONGTYPE\"}"), Some(&1.0));
    assert!(numbers.contains_key("tarn_db_keys{db=\"0\"}"));
}

#[test]
fn metrics_are_in_seconds_and_ratios() {
    let (server, port) = start(&[]);
    let mut client = server.client();
    client.call("SET key value EX 1000000");
    client.call("SAVE");
    let numbers = parse(&get(port, "/metrics", "").1);
    let flush_usec = client.info("tarn", "tarn_flush_usec") as f64;
    assert_eq!(numbers["tarn_flush_seconds_total"], flush_usec * 1e-6);
    for (metric, least, most) in [
        ("tarn_db_avg_ttl_seconds{db=\"0\"}", 900_000.0, 1_000_000.0),
        ("tarn_used_memory_peak_ratio", 0.01, 1.0),
        ("tarn_command_latency_seconds{command=\"save\",quantile=\"0.5\"}", 1e-9, 100.0),
    ] {
        assert!((least..=most).contains(&numbers[metric]), "{metric} {}", numbers[metric]);
    }
}

#[test]
fn strangers_and_other_sites_are_refused() {
    let (server, port) = start(&["--metrics-hosts", "db.example"]);
    let ask = |head: &str| ask_raw(port, format!("GET /metrics HTTP/1.1\r\n{head}\r\n\r\n").as_bytes());
    for good in
        ["Host: 127.0.0.1", "Host: db.example", &format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}")]
    {
        assert!(ask(good).starts_with("HTTP/1.1 200 "), "{good}");
    }
    for bad in [
        "Host: evil.example",
        "Accept: */*",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Host: localhost\r\nSec-Fetch-Site: cross-site",
    ] {
        assert!(ask(bad).starts_with("HTTP/1.1 403 "), "{bad}");
    }
    let mut admin = server.client();
    for line in ["CONFIG SET requirepass secret", "ACL SETUSER other on >secret +@all"] {
        assert_eq!(admin.call(line).text(), "OK");
    }
    for path in ["/", "/metrics", "/status.json"] {
        assert_eq!(get(port, path, "").0, "401");
        // `default:wrong`, `other:secret`, `default:secret`.
        for (coded, status) in
            [("ZGVmYXVsdDp3cm9uZw==", "401"), ("b3RoZXI6c2VjcmV0", "401"), ("ZGVmYXVsdDpzZWNyZXQ=", "200")]
        {
            assert_eq!(get(port, path, &format!("Authorization: Basic {coded}\r\n")).0, status, "{path} {coded}");
        }
    }
    assert!(!get(port, "/", "").1.contains("script"));
    // Each wrong password is noted, as a client's is.
    let mut client = server.client();
    client.call("AUTH secret");
    assert_eq!(client.info("stats", "acl_access_denied_auth"), 6);
    assert_eq!(client.call("ACL LOG").items().len(), 2);
}

#[test]
fn bad_requests_slow_peers_and_many_of_them() {
    let (server, port) = start(&[]);
    for (request, status) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], "400"),
        (b"GET / HTTP/9.9\r\n\r\n", "400"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"DELETE /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
        (&[&b"GET / HTTP/1.1\r\nX: "[..], &[b'x'; 9000]].concat(), "431"),
        (&[&b"GET / HTTP/1.1\r\n"[..], &b"a: b\r\n".repeat(100)].concat(), "431"),
    ] {
        let reply = ask_raw(port, request);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        // Which methods there are is told with the refusal of another one.
        assert_eq!(reply.contains("\r\nAllow: GET, HEAD\r\n"), status == "405", "{reply}");
    }
    let head = ask_raw(port, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    // As many as there may be hold their places and say nothing: others are closed, clients are served.
    let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap_or_else(|e| panic!("{e}"));
    let slow: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    assert_eq!(server.client().call("PING").text(), "PONG");
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap_or_else(|e| panic!("{e}"));
        let read = stream.read(&mut [0]);
        read.map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |read| read == 0)
    };
    until("all but 32 are closed", || slow.iter().filter(|stream| is_closed(stream)).count() == 200 - 32);
    // In a while these have lost them.
    let answers = || ask_raw(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 200 ");
    until("the slow ones have lost their places", answers);
    drop(slow);
    let asks: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || (0..20).filter(|_| get(port, "/status.json", "").0 == "200").count()))
        .collect();
    assert!(asks.into_iter().all(|ask| ask.join().is_ok_and(|good| good == 20)));
    assert!(!server.output().contains("panicked"), "{}", server.output());
}

/// Who asks is the default user, whatever that may do.
#[test]
fn what_the_default_user_may_not_know_is_not_told() {
    let (server, port) = start(&[]);
    let mut client = server.client();
    client.call("ACL SETUSER admin on nopass allcommands");
    client.call("AUTH admin x");
    for (rule, status) in [("-info", "403"), ("+info", "200"), ("-@all", "403"), ("off", "403")] {
        assert_eq!(client.call(&format!("ACL SETUSER default {rule}")).text(), "OK");
        assert_eq!(get(port, "/metrics", "").0, status, "{rule}");
    }
}

/// All names in the dashboard's queries exist.
#[test]
fn the_dashboard_names_what_there_is() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/grafana.json"))
        .unwrap_or_else(|e| panic!("{e}"));
    let (server, port) = start(&[]);
    work(&server);
    let numbers = parse(&get(port, "/metrics", "").1);
    let known: BTreeSet<&str> = numbers.keys().filter_map(|series| series.split('{').next()).collect();
    let words = text.split(|c: char| c != '_' && !c.is_ascii_lowercase() && !c.is_ascii_digit());
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("tarn_")).collect();
    assert!(named.len() > 20);
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// In a browser without a window: the page is filled, with what INFO tells, and names are no markup.
#[test]
fn the_page_shows_what_info_tells() {
    const FACTS: [(&str, &str); 5] = [
        ("tarn", "tarn_memory_budget"),
        ("tarn", "tarn_dirty_budget"),
        ("stats", "expired_keys"),
        ("stats", "total_error_replies"),
        ("tarn", "tarn_flushes"),
    ];
    if !has_program("chromium") {
        return;
    }
    let (server, port) = start(&[]);
    work(&server);
    let mut named = server.client();
    named.call("CLIENT SETNAME <img/src=x/onerror=document.title=1>");
    named.call("CONFIG SET slowlog-log-slower-than 0");
    named.call("SET slow:<script>alert(1)</script> \"&amp;'");
    named.call("CONFIG SET slowlog-log-slower-than -1");
    let mut client = server.client();
    let before = FACTS.map(|(section, fact)| client.info(section, fact));
    let profile = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=4000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://127.0.0.1:{port}/"))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{e}"));
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |fact: &str| {
        let rest = dom.split_once(&format!("data-fact=\"{fact}\""))?.1;
        let tag = rest.split('>').next()?;
        tag.split_once("data-value=\"")?.1.split('"').next().map(str::to_owned)
    };
    for ((section, fact), before) in FACTS.into_iter().zip(before) {
        // A flush may end at any time.
        let shown = value(fact).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{fact} {dom}"));
        assert!((before..=client.info(section, fact)).contains(&shown), "{fact}: {before}, {shown} {dom}");
    }
    assert!(dom.contains(">all is well<"), "{dom}");
    assert!(dom.contains("&lt;img/src=x/onerror=document.title=1&gt;") && !dom.contains("<img"), "{dom}");
    assert!(dom.contains("<title>Tarn</title>"), "{dom}");
    let slow = dom.split_once("id=\"slow\"").and_then(|(_, rest)| rest.split("</table>").next()).unwrap_or_default();
    assert!(slow.contains("SET slow:&lt;script&gt;alert(1)&lt;/script&gt; \"&amp;amp;'"), "{slow}");
}

/// As many entries of the slow log as a page needs, and as much of each as SLOWLOG GET tells; texts are texts.
#[test]
fn slow_commands_are_told_of_in_part() {
    let (server, port) = start(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000"]);
    let mut client = server.client();
    client.call("CLIENT SETNAME some\\one");
    let many: Vec<String> = (0..100).map(|n| format!("</script>{}{n}", "x".repeat(1000))).collect();
    for _ in 0..50 {
        let args: Vec<&str> = std::iter::once("DEL").chain(many.iter().map(String::as_str)).collect();
        client.try_call(&args).unwrap_or_else(|e| panic!("{e:?}"));
    }
    client.call("SET last \u{1}\"\\<");
    let (status, text) = get(port, "/status.json", "");
    let slow = text.split_once("\"slow\":[").and_then(|(_, rest)| rest.split_once("],\"clients_shown_of\""));
    let slow = slow.map(|(slow, _)| slow).unwrap_or_else(|| panic!("{text}"));
    assert_eq!((status.as_str(), slow.matches("{\"at_s\":").count()), ("200", 20));
    assert!(slow.len() < 200_000 && !slow.contains('<'), "{}", slow.len());
    assert!(slow.contains("... (70 more arguments)") && slow.contains("... (882 more bytes)"), "{slow}");
    let last = r#""args":["SET","last","\u0001\"\\\u003c"],"addr":"127.0.0.1:"#;
    assert!(slow.split("},{").next().is_some_and(|first| first.contains(last)), "{slow}");
    assert!(slow.contains(r#""name":"some\\one""#), "{slow}");
    // Who may not ask for them is not told.
    let allowed = |text: &str| (!text.contains("\"slow\":null"), !text.contains("\"clients\":null"));
    client.call("ACL SETUSER admin on nopass allcommands");
    client.call("AUTH admin x");
    for (rule, expected) in [("-slowlog", (false, true)), ("-client|list", (false, false)), ("+slowlog", (true, false))]
    {
        assert_eq!(client.call(&format!("ACL SETUSER default {rule}")).text(), "OK");
        assert_eq!(allowed(&get(port, "/status.json", "").1), expected, "{rule}");
    }
}
