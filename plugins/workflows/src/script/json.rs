//! Values of a script as JSON, and nothing that is not.

use rquickjs::{Array, Ctx, Filter, Object, String as Text, Type, Value as Js};
use serde_json::{Map, Number, Value};

use super::watchdog::Watchdog;
use crate::request::clip;

/// JSON that is nested deeper is refused, as everywhere in this library.
const DEPTH_MAX: usize = 128;

/// The largest integer that a double holds exactly.
const INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// What a value takes beside its text, in bytes.
const NODE_BYTES: usize = size_of::<Value>();

/// A key that is longer than this many characters is cut where an error names it.
const KEY_CHARS_MAX: usize = 64;

/// The value as plain JSON; `undefined` is null. Runs getters, if the script gives it some.
///
/// What a script holds once may stand in its value many times, and all of them take memory that is
/// not the script's: so the value is bounded by itself, to about `bytes_max`.
///
/// # Errors
///
/// What is not plain, and where; or that it is too large.
pub(super) fn plain<'js>(
    ctx: &Ctx<'js>,
    dog: &Watchdog,
    value: Js<'js>,
    bytes_max: usize,
) -> Result<Value, String> {
    let globals = ctx.globals();
    let prototype = |name: &str| -> Option<Object<'js>> {
        globals.get::<_, Object<'js>>(name).ok()?.get("prototype").ok()
    };
    let mut walk = Walk {
        object: prototype("Object"),
        array: prototype("Array"),
        dog,
        bytes_max,
        bytes_left: bytes_max,
    };
    walk.value(value, &mut Vec::new(), "result")
}

struct Walk<'js, 'a> {
    object: Option<Object<'js>>,
    array: Option<Object<'js>>,
    dog: &'a Watchdog,
    bytes_max: usize,
    bytes_left: usize,
}

impl<'js> Walk<'js, '_> {
    /// Takes a value of so many bytes of text into account.
    fn charge(&mut self, text: usize) -> Result<(), String> {
        if self.dog.barks() {
            return Err("the script is over".to_owned());
        }
        let left = self.bytes_left.checked_sub(text.saturating_add(NODE_BYTES));
        let too_large = || format!("the value is larger than {} bytes", self.bytes_max);
        self.bytes_left = left.ok_or_else(too_large)?;
        Ok(())
    }

    /// `above` holds what the value is part of.
    fn value(
        &mut self,
        value: Js<'js>,
        above: &mut Vec<Js<'js>>,
        place: &str,
    ) -> Result<Value, String> {
        self.charge(0)?;
        match value.type_of() {
            Type::Undefined | Type::Null => return Ok(Value::Null),
            Type::Bool => return Ok(Value::Bool(value.as_bool().unwrap_or_default())),
            Type::Int => return Ok(Value::from(value.as_int().unwrap_or_default())),
            Type::Float => return number(value.as_float().unwrap_or(f64::NAN), place),
            Type::String => {
                let text = value.into_string().and_then(|text| text.to_string().ok());
                let text = text.ok_or_else(|| format!("{place} is no valid text"))?;
                self.charge(text.len())?;
                return Ok(Value::String(text));
            }
            Type::Array | Type::Object => {}
            other => return Err(format!("{place} is a {other}")),
        }
        if value.is_proxy() {
            return Err(format!("{place} is a proxy"));
        }
        if above.contains(&value) {
            return Err(format!("{place} contains itself: the result is cyclic"));
        }
        if above.len() >= DEPTH_MAX {
            return Err(format!("{place} is nested deeper than {DEPTH_MAX}"));
        }
        above.push(value.clone());
        let whole = match value.try_into_array() {
            Ok(array) => self.array(array, above, place),
            Err(value) => match value.into_object() {
                Some(object) => self.object(object, above, place),
                None => Err(format!("{place} is no plain value")),
            },
        };
        above.pop();
        whole
    }

    fn array(
        &mut self,
        array: Array<'js>,
        above: &mut Vec<Js<'js>>,
        place: &str,
    ) -> Result<Value, String> {
        let object = array.as_object();
        if object.get_prototype() != self.array {
            return Err(format!("{place} has an exotic prototype"));
        }
        // Holes first: a sparse array may be very long.
        let own = object.own_keys::<rquickjs::Atom<'js>>(Filter::new().string()).count();
        let len = length(&array).map_err(|_| format!("{place} cannot be read"))?;
        if own != len + 1 {
            return Err(format!("{place} is a sparse array, or has keys beside its items"));
        }
        let items = (0..len).map(|index| {
            let place = format!("{place}[{index}]");
            let item = array.get(index).map_err(|_| format!("{place} cannot be read"))?;
            self.value(item, above, &place)
        });
        items.collect::<Result<_, _>>().map(Value::Array)
    }

    fn object(
        &mut self,
        object: Object<'js>,
        above: &mut Vec<Js<'js>>,
        place: &str,
    ) -> Result<Value, String> {
        let prototype = object.get_prototype();
        if prototype.is_some() && prototype != self.object {
            return Err(format!(
                "{place} has an exotic prototype (a class, a Map, a Date, an Error?)"
            ));
        }
        if object.own_keys::<rquickjs::Atom<'js>>(Filter::new().symbol()).next().is_some() {
            return Err(format!("{place} has a symbol as a key"));
        }
        let mut fields = Map::new();
        for field in object.own_props::<Text<'js>, Js<'js>>(Filter::new().string().enum_only()) {
            let (key, field) = field.map_err(|_| format!("{place} cannot be read"))?;
            // The binding's own way from a key to text trusts the script to have given it UTF-8.
            let key = key.to_string().map_err(|_| format!("{place} has a key that is no text"))?;
            // As `JSON.stringify` does.
            if field.is_undefined() {
                continue;
            }
            self.charge(key.len())?;
            let shown = clip(&key, KEY_CHARS_MAX);
            let value = self.value(field, above, &format!("{place}.{shown}"))?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

/// How long an array is. The binding's own way to ask panics for one of more than 2^31 items.
pub(super) fn length(array: &Array<'_>) -> rquickjs::Result<usize> {
    let length: f64 = array.as_object().get("length")?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an array's length is an integer below 2^32"
    )]
    Ok(length as usize)
}

fn number(value: f64, place: &str) -> Result<Value, String> {
    if value.fract() == 0.0 && value.abs() <= INTEGER_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "an integer within 2^53")]
        return Ok(Value::from(value as i64));
    }
    Number::from_f64(value).map(Value::Number).ok_or_else(|| format!("{place} is not finite"))
}
