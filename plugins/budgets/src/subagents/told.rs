//! What is left can be seen.

use super::*;

#[tokio::test]
async fn an_agent_shows_what_is_left_of_every_budget_that_counts() {
    let script = fan_out(&["child"]).rule(asked("child"), costing(Reply::text("ok"), 30));
    let house = House::new(script).await;
    let tree = Budget::new().tokens(1000).live_children(3);
    let root = house.agent(|it| it.tree_budget(tree).budget(Budget::new().turns(5))).await;
    root.prompt("go").await.unwrap();
    let [own, shared] = &root.budgets()[..] else { panic!("{:?}", root.budgets()) };
    assert_eq!((own.tree, own.left(Resource::Turns)), (false, Some(4)));
    assert!(shared.tree && shared.left(Resource::Tokens).unwrap() <= 970);
    assert_eq!(shared.left(Resource::LiveChildren), Some(3));
    assert_eq!(shared.left(Resource::Cost), None);
    let shown = serde_json::to_value(shared).unwrap();
    assert_eq!(shown["owner"], json!(root.id()));
    assert_eq!(shown["resources"][1]["resource"], "live-children");
    let child = &house.born()[1];
    assert_eq!(child.budgets().len(), 1, "the tree's alone");
    assert_eq!(child.budgets()[0].owner, *root.id());
    house.ends_clean().await;
}
