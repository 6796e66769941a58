"""A run that lost slots spreads over as many again when they are back."""

from tiercel.workers.driver.hosts import Width


class Hosts:
    free = 0


def returns_after(width, hosts, began=0.0, until=200.0):
    """Seconds after which a new run is planned; None if it is not."""
    now = began
    while now < until:
        if width.may_return(hosts, now):
            return now - began
        now += 1.0
    return None


def test_a_run_with_all_the_slots_it_ever_had_is_left_alone():
    width = Width()
    hosts = Hosts()
    width.began(2, of=8)
    hosts.free = 4
    assert returns_after(width, hosts) is None, "new executors are the operator's decision"


def test_slots_that_were_lost_are_used_again_when_they_are_surely_there():
    width = Width()
    hosts = Hosts()
    width.began(2, of=8)
    width.began(1, of=8)
    assert returns_after(width, hosts) is None
    hosts.free = 1
    assert 5 <= returns_after(width, hosts, 200.0, 400.0) <= 20
    width.began(2, of=8)
    assert returns_after(width, hosts, 400.0, 500.0) is None


def test_an_executor_that_comes_and_goes_is_not_worth_a_new_run():
    width = Width()
    hosts = Hosts()
    width.began(2, of=8)
    width.began(1, of=8)
    for now in range(200):
        hosts.free = now // 5 % 2
        assert not width.may_return(hosts, float(now))


def test_fewer_bolt_tasks_need_fewer_slots():
    width = Width()
    hosts = Hosts()
    width.began(4, of=8)
    width.began(2, of=2)
    hosts.free = 2
    assert returns_after(width, hosts) is None
