//! What content weighs, in tokens, without a tokenizer: four UTF-16 code units a token, each piece
//! rounded up, and a constant for the markup around it.
//!
//! UTF-16 code units, because bytes would make a script like Chinese three times as heavy as models
//! find it.

use playhouse_messages::{config::ToolList, content::ContentBlock, message::Message};
use serde::Serialize;

/// Code units that make a token.
const DENSITY: usize = 4;

/// The markup around a block, a message, or the list of tools.
const OVERHEAD: u64 = 4;

/// Text alone.
pub fn text(text: &str) -> u64 {
    text.encode_utf16().count().div_ceil(DENSITY) as u64
}

/// One block. An image or a file weighs what its reference does, not its pixels.
pub fn block(block: &ContentBlock) -> u64 {
    OVERHEAD
        + match block {
            ContentBlock::Text(content) | ContentBlock::Reasoning(content) => text(content),
            ContentBlock::ToolCall(call) => text(&call.name) + text(&call.arguments),
            other => json(other),
        }
}

/// Some blocks, as the content of one message.
pub fn content(blocks: &[ContentBlock]) -> u64 {
    OVERHEAD + blocks.iter().map(block).sum::<u64>()
}

/// One message.
pub fn message(message: &Message) -> u64 {
    content(&message.content)
}

/// The tools of a request; nothing if there are none.
pub fn tools(tools: &ToolList) -> u64 {
    if tools.is_empty() { 0 } else { OVERHEAD + json(tools) }
}

fn json(value: &impl Serialize) -> u64 {
    // Keys are strings and numbers are finite, so it cannot fail.
    text(&serde_json::to_string(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use playhouse_messages::testing::schema;
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_counted_in_utf_16() {
        let prices = ["", "a", "abcd", "abcde", "你好你好", "😀😀", "😀😀😀"].map(text);
        assert_eq!(prices, [0, 1, 1, 2, 1, 1, 2]);
    }

    #[test]
    fn what_has_no_text_weighs_what_its_json_does() {
        let image = |offloaded| ContentBlock::Image { attachment: json!({"id": "a"}), offloaded };
        assert_eq!(block(&image(false)), 4 + 10); // {"type":"image","attachment":{"id":"a"}}
        assert_eq!(block(&image(true)), 4 + 15); // and ,"offloaded":true
        let addition = ContentBlock::ToolAddition { tool_name: "abc".into() };
        assert_eq!(block(&addition), 4 + 11);
    }

    #[test]
    fn tools_weigh_as_one_list() {
        assert_eq!(tools(&[].into()), 0);
        let list: ToolList = [schema("a"), schema("b")].into();
        let len = serde_json::to_string(&list).unwrap().len();
        assert_eq!(tools(&list), 4 + (len as u64).div_ceil(4));
    }

    mod scenario {
        use playhouse_messages::content::ToolCallBlock;

        use super::*;

        #[test]
        fn llm_66_a_short_message_and_a_call() {
            assert_eq!(message(&Message::user("u", "abcd")), 9);
            let call = ToolCallBlock {
                id: "call_1".into(),
                name: "read".into(),
                arguments: r#"{"p":12}"#.into(),
            };
            assert_eq!(block(&ContentBlock::ToolCall(call)), 1 + 2 + 4);
        }
    }
}
