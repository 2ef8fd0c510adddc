//! Images by `--image` and over rpc.

use serde_json::{Value, json};

use super::House;

const GIF: &[u8] = b"GIF89a\x03\0\x02\0\0\0\0;";
const GIF_BASE64: &str = "R0lGODlhAwACAAAAADs=";

/// A house whose model `s/any` tells how many images it got.
fn house() -> House {
    let house = House::new();
    house.write("s.toml", "[[rules]]\nreply = { text = \"{{images}} of {{prompt}}\" }\n");
    house.write(
        "playhouse.toml",
        "[providers.s]\nkind = \"scripted\"\nscript = \"s.toml\"\n\
         input_modalities = [\"text\", \"image\"]\n\
         [[agent]]\nid = \"a\"\nprovider = \"s\"\nmodel = \"any\"\nsessionId = \"it\"\n",
    );
    house
}

#[test]
fn run_shows_images_to_the_model_and_keeps_them_beside_the_sessions() {
    let house = house();
    std::fs::write(house.path().join("dot.gif"), GIF).unwrap();
    std::fs::write(house.path().join("other.gif"), [GIF, b"!"].concat()).unwrap();
    let ended = house.run(&["run", "--image", "dot.gif", "--image", "other.gif", "cats"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "2 of cats\n"), "{ended:?}");
    let kept = std::fs::read_dir(house.path().join(".playhouse/attachments")).unwrap();
    assert_eq!(kept.count(), 2);
    let shown = house.run(&["sessions", "show", "it", "--format", "jsonl"]);
    assert!(shown.out.contains(r#""name":"dot.gif""#) && !shown.out.contains(GIF_BASE64));
    // A later process reads them again.
    let again = house.run(&["run", "dogs"]);
    assert_eq!(again.out, "2 of dogs\n", "{again:?}");
    assert_eq!(house.run(&["sessions", "verify"]).code, Some(0));
}

#[test]
fn run_refuses_what_is_no_image_before_it_opens_anything() {
    let house = house();
    house.write("notes.png", "these are words");
    let ended = house.run(&["run", "--image", "notes.png", "cats"]);
    let error = ended.error(2);
    assert!(error.contains("notes.png") && error.contains("PNG, JPEG, GIF or WebP"), "{error}");
    let error = house.run(&["run", "--image", "missing.png", "cats"]);
    assert!(error.error(2).contains("missing.png"), "{error:?}");
    assert!(!house.path().join(".playhouse").exists());
}

#[test]
fn rpc_stores_what_is_sent_inline_and_tells_events_by_reference() {
    let house = house();
    let mut running = house.spawn(&["rpc"]);
    let mut next = 0;
    let mut call = |method: &str, params: Value| {
        next += 1;
        let request = json!({"jsonrpc": "2.0", "id": next, "method": method, "params": params});
        running.send(&request.to_string());
        running.line(|line| {
            let message: Value = serde_json::from_str(line).unwrap();
            (message["id"] == next && message["method"].is_null()).then_some(message)
        })
    };
    let image = json!({"type": "image", "data": GIF_BASE64, "mediaType": "image/gif"});
    let content = json!([{"type": "text", "text": "cats"}, image]);
    let prompted = call("agent/prompt", json!({"agent": "it", "content": content}));
    assert_eq!(prompted["result"]["text"], "1 of cats", "{prompted}");

    let put = call("attachment/put", json!({"data": GIF_BASE64, "name": "dot.gif"}));
    let attachment = put["result"]["attachment"].clone();
    assert_eq!((&attachment["mediaType"], &attachment["width"]), (&json!("image/gif"), &json!(3)));
    let content =
        json!([{"type": "text", "text": "dogs"}, {"type": "image", "attachment": attachment}]);
    let prompted = call("agent/prompt", json!({"agent": "it", "content": content}));
    assert_eq!(prompted["result"]["text"], "2 of dogs", "{prompted}");
    let log = call("session/log", json!({"session": "it"}));
    assert!(!log.to_string().contains(GIF_BASE64));

    let mut refused = |block: Value, code: &str| {
        let answer = call("agent/prompt", json!({"agent": "it", "content": [block]}));
        assert_eq!(answer["error"]["data"]["code"], code, "{answer}");
    };
    refused(json!({"type": "image", "data": "&"}), "INVALID_PARAMS");
    refused(json!({"type": "image", "data": "d29yZHM="}), "UNSUPPORTED_MEDIA_TYPE");
    refused(
        json!({"type": "image", "data": GIF_BASE64, "mediaType": "image/png"}),
        "INVALID_PARAMS",
    );
    refused(json!({"type": "image"}), "INVALID_PARAMS");
    let (code, lines) = running.end();
    assert_eq!(code, Some(0), "{lines:?}");
}
