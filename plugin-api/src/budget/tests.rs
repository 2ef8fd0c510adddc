use std::time::Duration;

use futures::FutureExt;
use playhouse_messages::{
    chunk::{StreamChunk, Usage},
    config::{ModelChoice, Route},
    event::{Event, EventBody, NewEvent, StepAt, TurnEnd, TurnEndReason, TurnStart},
};

use super::*;

fn opening(id: &str) -> Opening<'_> {
    Opening {
        id: id.into(),
        budget: None,
        tree_budget: None,
        parent: None,
        prices: Some(Default::default()),
        choice: None,
        spent: Spent::default(),
    }
}

fn account(budget: Budget) -> std::sync::Arc<Account> {
    let opening = Opening { budget: Some(budget), ..opening("a") };
    Account::open(opening).unwrap().0.unwrap()
}

fn route() -> Route {
    Route::new("p", "m")
}

fn tokens(account: &Account) -> (u64, u64) {
    let status = account.status()[0].resources[0];
    (status.used, status.reserved)
}

fn reported(input_tokens: u64) -> Meter {
    let mut meter = Meter::new(0);
    let usage = Usage { input_tokens, ..Usage::default() };
    meter.see(&StreamChunk::Usage { usage });
    meter
}

fn asks(tokens: u64) -> Amounts {
    Amounts::of(Resource::Tokens, tokens)
}

#[test]
fn a_reservation_holds_back_others_and_is_given_back() {
    let account = account(Budget::new().tokens(100));
    let first = account.reserve(asks(150), true).now_or_never().unwrap().unwrap();
    assert_eq!(tokens(&account), (0, 150));
    let mut second = Box::pin(account.reserve(asks(1), true));
    assert!(second.as_mut().now_or_never().is_none(), "all that is left is reserved");
    assert!(account.reserve(asks(1), false).now_or_never().unwrap().is_ok(), "who may not wait");
    account.commit(first, &route(), &reported(99));
    let second = second.now_or_never().unwrap().unwrap();
    assert_eq!(tokens(&account), (99, 1));
    account.commit(second, &route(), &reported(7));
    let refused = account.reserve(asks(1), true).now_or_never().unwrap().unwrap_err();
    let spent = refused.spent();
    assert_eq!((&*spent.resource, spent.limit, spent.used), ("tokens", 100, 106));
    assert!(account.check().is_err());
    assert_eq!(tokens(&account), (106, 0));
}

#[test]
fn what_is_dropped_is_given_back() {
    let account = account(Budget::new().tokens(100));
    let first = account.reserve(asks(100), true).now_or_never().unwrap().unwrap();
    let mut second = Box::pin(account.reserve(asks(1), true));
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    drop(second.now_or_never().unwrap().unwrap());
    assert_eq!(tokens(&account), (0, 0));
}

#[test]
fn a_charge_that_one_budget_refuses_is_charged_to_none() {
    let (budget, tree_budget) = (Some(Budget::new().steps(5)), Some(Budget::new().steps(2)));
    let opening = Opening { budget, tree_budget, ..opening("a") };
    let account = Account::open(opening).unwrap().0.unwrap();
    let taken = (0..4).map(|_| account.spend(Resource::Steps).is_ok()).collect::<Vec<_>>();
    assert_eq!(taken, [true, true, false, false]);
    let used: Vec<_> = account.status().iter().map(|status| status.resources[0].used).collect();
    assert_eq!(used, [2, 2]);
}

#[test]
fn an_unpriced_route_and_a_harness_without_the_plugin_are_refused() {
    let choice = ModelChoice { provider: "p".into(), model: "m".into(), reasoning_effort: None };
    let costly = || Opening {
        tree_budget: Some(Budget::new().cost(5)),
        choice: Some(choice.clone()),
        ..opening("a")
    };
    assert_eq!(Account::open(costly()).unwrap_err().code(), "UNPRICED_ROUTE");
    let nobody = Opening { prices: None, ..costly() };
    assert_eq!(Account::open(nobody).unwrap_err().code(), "BUDGETS_NOT_ENFORCED");
    let prices = Prices::new().with("p", "m", Price::new(0.3, 1.2).cached(0.03, 0.4));
    let priced = Opening { prices: Some(prices.into()), ..costly() };
    let account = Account::open(priced).unwrap().0.unwrap();
    let usage = Usage {
        input_tokens: 10,
        output_tokens: 5,
        cache_read_tokens: Some(100),
        cache_write_tokens: Some(1),
        ..Usage::default()
    };
    let amounts = account.amounts(&route(), &usage);
    // 3 + 6 + 3 + 0.4, rounded up.
    assert_eq!((amounts.get(Resource::Tokens), amounts.get(Resource::Cost)), (116, 13));
    assert_eq!(account.check_route(&Route::new("p", "n")).unwrap_err().code(), "UNPRICED_ROUTE");
}

#[tokio::test(start_paused = true)]
async fn time_counts_while_the_agent_runs() {
    let account = account(Budget::new().wall_time(Duration::from_millis(100)));
    account.run();
    account.run();
    tokio::time::advance(Duration::from_millis(30)).await;
    assert_eq!(account.time_left(), Some(Duration::from_millis(70)));
    account.rest();
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(account.check().is_ok());
    account.run();
    tokio::time::advance(Duration::from_millis(70)).await;
    let refused = account.check().unwrap_err();
    assert_eq!((&*refused.spent().resource, refused.spent().used), ("wall-time", 100));
    assert!(account.reserve(asks(1), true).await.is_err());
}

#[test]
fn a_log_says_what_was_spent() {
    let at = StepAt { turn: 1, step: 1 };
    let charged = Charged::new("child".into(), &asks(40).and(Resource::Turns, 2));
    let end = TurnEnd { turn: 1, reason: TurnEndReason::Completed };
    let bodies = [
        NewEvent::log_only(EventBody::TurnStart(TurnStart { turn: 1 })),
        NewEvent::log_only(EventBody::StepStart(at)),
        charged.event(),
        NewEvent::log_only(EventBody::StepEnd(at)),
        NewEvent::log_only(EventBody::StepStart(StepAt { turn: 1, step: 2 })),
        NewEvent::log_only(EventBody::TurnEnd(end)),
    ];
    let events: Vec<Event> =
        bodies.into_iter().enumerate().map(|(n, it)| it.at(n as u64, 10 * n as i64)).collect();
    let spent = Spent::fold(&events, &Prices::new());
    let own = [Resource::Turns, Resource::Steps, Resource::WallTime].map(|it| spent.own.get(it));
    assert_eq!(own, [1, 2, 50]);
    assert_eq!(spent.below, asks(40).and(Resource::Turns, 2));
    assert_eq!(Charged::read(&events[2].body), Some(charged));
}

#[test]
fn a_request_without_a_report_counts_what_came() {
    let text = |text: &str| StreamChunk::TextDelta { index: 0, text: text.to_owned() };
    let mut meter = Meter::new(10);
    assert_eq!(tokens_of(&meter.usage()), 0, "nothing came");
    meter.see(&text("nine byte"));
    assert_eq!(tokens_of(&meter.usage()), 13);
    meter.see(&StreamChunk::Usage { usage: Usage::default() });
    assert_eq!(tokens_of(&meter.usage()), 0, "as reported");
    let (input_tokens, output_tokens) = (u64::MAX, u64::MAX);
    let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
    meter.see(&StreamChunk::Usage { usage });
    assert_eq!(tokens_of(&meter.usage()), u64::MAX, "whatever is reported");
}
