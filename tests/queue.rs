//! A queue costs the same however much has gone through it: what was popped leaves nothing behind in memory, whether
//! the list was in memory all the time or came from disk.

#![expect(clippy::expect_used, reason = "tests")]

mod common;

use common::resp::{Client, encode};
use common::server::Server;

const ROUNDS: i64 = 100;
/// Of each round, pushes and pops together.
const OPERATIONS: i64 = 1000;
/// Elements that wait in the queue between rounds: more than are read whole at the first touch.
const WAITING: i64 = 100;
/// Memory of a list that has just so many elements of this size in memory, with room to spare.
const MOST_BYTES: i64 = 64 << 10;

fn round(client: &mut Client, next: &mut i64) {
    let mut request = Vec::new();
    for _ in 0..OPERATIONS / 2 {
        request.extend(encode(&["RPUSH", "queue", &format!("job:{next}")]));
        request.extend(encode(&["LPOP", "queue"]));
        *next += 1;
    }
    client.send_raw(&request).expect("the server takes requests");
    for popped in *next - OPERATIONS / 2..*next {
        let pushed = client.read().expect("a reply to RPUSH");
        assert_eq!(pushed.int(), Some(WAITING + 1));
        let job = client.read().expect("a reply to LPOP");
        assert_eq!(job.text(), format!("job:{}", popped - WAITING));
    }
}

/// Memory that the queue takes once the store has what is new.
fn flushed_bytes(client: &mut Client) -> i64 {
    client.call("DEBUG RELOAD");
    client.call("MEMORY USAGE queue").int().expect("the queue is there")
}

#[test]
fn a_queue_leaves_nothing_behind() {
    let mut server = Server::tarn(&["--enable-debug-command", "yes"]);
    let mut client = server.client();
    for job in 0..WAITING {
        client.call(&format!("RPUSH queue job:{job}"));
    }
    let mut next = WAITING;
    for number in 0..ROUNDS {
        round(&mut client, &mut next);
        if number % 10 == 3 {
            let bytes = flushed_bytes(&mut client);
            assert!(bytes <= MOST_BYTES, "{bytes} bytes in round {number}");
        }
        if number % 40 == 25 {
            assert_eq!(server.stop(), Some(0), "exit code after SIGTERM");
            server.spawn();
            server.wait_ready();
            client = server.client();
        }
        assert_eq!(client.call("LINDEX queue -1").text(), format!("job:{}", next - 1));
    }
    let jobs = client.call("LRANGE queue 0 -1");
    assert_eq!(jobs.items().len() as i64, WAITING);
    assert_eq!(jobs.items()[0].text(), format!("job:{}", next - WAITING));
    let bytes = flushed_bytes(&mut client);
    assert!(bytes <= MOST_BYTES, "{bytes} bytes at the end");
}
