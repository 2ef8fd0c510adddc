use super::*;

/// The example log of the core specification, section 3.6, and one event of each further kind.
const LOG: &[&str] = &[
    r#"{"type":"agent/inbox/spliced","seq":0,"time":1,"data":{"target":"next-turn","start":0,"inserted":[{"id":"m1","role":"user","content":[{"type":"text","text":"list files"}],"source":{"kind":"user"}}]}}"#,
    r#"{"type":"turn/start","seq":1,"time":1,"data":{"turn":1}}"#,
    r#"{"type":"agent/inbox/spliced","seq":2,"time":1,"data":{"target":"next-turn","start":0,"removedCount":1,"inserted":[]}}"#,
    r#"{"type":"step/start","seq":3,"time":2,"data":{"turn":1,"step":1}}"#,
    r#"{"type":"system/message","seq":4,"time":3,"data":{"turn":1,"step":1,"message":{"id":"s1","role":"system","content":[{"type":"text","text":"P"}],"source":{"kind":"system-prompt"}}},"surfaceOp":"append"}"#,
    r#"{"type":"user/message","seq":5,"time":3,"data":{"id":"m1","role":"user","content":[{"type":"text","text":"list files"}],"source":{"kind":"user"}},"surfaceOp":"append"}"#,
    r#"{"type":"request/header","seq":6,"time":3,"data":{"header":{"config":{"provider":"p","model":"m"},"tools":[{"name":"ls","description":"d","parameters":{"type":"object"}}]},"reason":"initial"}}"#,
    r#"{"type":"request/context","seq":7,"time":3,"data":{"provider":"p","model":"m","contextWindow":128000}}"#,
    r#"{"type":"assistant/message","seq":8,"time":9,"data":{"turn":1,"step":1,"message":{"id":"a1","role":"assistant","content":[{"type":"tool-call","id":"c1","name":"ls","arguments":"{}"}],"source":{"kind":"model","provider":"p","model":"m"}},"stream":[{"type":"tool-call-chunks","time0":8,"index":0,"dt":[],"id":"c1","name":"ls","args":["{}"]},{"type":"chunk","time":9,"chunk":{"type":"finish","reason":{"kind":"tool-calls"}}}]},"surfaceOp":"append"}"#,
    r#"{"type":"tool/call","seq":9,"time":9,"data":{"turn":1,"step":1,"callId":"c1","name":"ls","arguments":"{}"}}"#,
    r#"{"type":"tool/result","seq":10,"time":12,"data":{"turn":1,"step":1,"message":{"id":"r1","role":"tool","toolCallId":"c1","isError":false,"content":[{"type":"text","text":"a.txt"}],"source":{"kind":"tool","callId":"c1"}}},"surfaceOp":"append","sourceEventSeqs":[9]}"#,
    r#"{"type":"step/end","seq":11,"time":12,"data":{"turn":1,"step":1}}"#,
    r#"{"type":"turn/end","seq":12,"time":15,"data":{"turn":1,"reason":{"kind":"completed"}}}"#,
    r#"{"type":"turn/end","seq":13,"time":15,"data":{"turn":1,"reason":{"kind":"aborted","reason":{"kind":"hook","reason":"no"}}}}"#,
    r#"{"type":"turn/end","seq":14,"time":15,"data":{"turn":1,"reason":{"kind":"error","error":{"message":"m","code":"UNKNOWN"}}}}"#,
    r#"{"type":"turn/end","seq":15,"time":15,"data":{"turn":1,"reason":{"kind":"budget","resource":"steps","limit":3,"used":3}}}"#,
    r#"{"type":"turn/end","seq":16,"time":15,"data":{"turn":1,"reason":{"kind":"eclipse","moon":true}}}"#,
    r#"{"type":"assistant/attempt","seq":17,"time":15,"data":{"turn":1,"step":1,"stream":[]}}"#,
    r#"{"type":"developer/message","seq":18,"time":15,"data":{"turn":1,"step":1,"message":{"id":"d","role":"developer","content":[{"type":"tool-addition","toolName":"x"}],"source":{"kind":"tool-registry"}},"headerSeq":6},"surfaceOp":"append"}"#,
    r#"{"type":"model/selection","seq":19,"time":15,"data":{"provider":"p","model":"m","reasoningEffort":"high"}}"#,
    r#"{"type":"session/end-seed","seq":20,"time":15,"data":{"inherited":true}}"#,
    r#"{"type":"session/end-seed","seq":21,"time":15,"data":{}}"#,
    r#"{"type":"todo/write","seq":22,"time":15,"data":{"todos":[]}}"#,
    r#"{"type":"x/note","seq":23,"time":15,"data":null,"ignorable":true}"#,
    r#"{"type":"user/message","seq":24,"time":15,"data":{"id":"m2","role":"user","content":[],"source":{"kind":"user"}},"surfaceOp":{"op":"replace","startSeq":5,"endSeq":10},"sourceEventSeqs":[5,8,10]}"#,
];

#[test]
fn every_event_reads_back_as_written() {
    for text in LOG {
        let event = Event::from_json(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
        assert_eq!(event.to_json(), *text);
        assert_eq!(event.json_len(), text.len() as u64);
    }
}

#[test]
fn unknown_envelope_keys_are_refused() {
    let text = r#"{"type":"turn/start","seq":1,"time":1,"data":{"turn":1},"extra":1}"#;
    assert!(Event::from_json(text).is_err());
    let text = r#"{"type":"x","seq":1,"time":1,"data":1,"ignorable":false}"#;
    assert!(Event::from_json(text).is_err());
    let text = r#"{"type":"x","seq":1,"time":1}"#;
    assert!(Event::from_json(text).is_err());
}
