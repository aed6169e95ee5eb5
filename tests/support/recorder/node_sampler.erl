%% What a running node looks like, several times a second: its memory, its alarms, and where one queue's messages are.
%%
%% It is loaded into the node and is a process there, so that a sample costs a few calls and no program of its own.
%% start(Path, Queue, IntervalMs) begins; each sample is one line of JSON in the file. stop() ends it.
%%
%% - "used" is what the node's own memory monitor saw last (once a second), "current" what it would see now.
%% - When the memory monitor makes its rounds is told by a trace of the messages that it gets: {"round_at_ms": …}.
%% - The queue is asked as any other process may ask it: by its info, which it answers between two messages.
-module(node_sampler).
-export([start/3, stop/0, measure/1, collect/0]).

start(Path, Queue, IntervalMs) ->
    Caller = self(),
    spawn(fun () ->
                  true = register(?MODULE, self()),
                  {ok, File} = file:open(Path, [write, raw, binary]),
                  1 = erlang:trace(whereis(rabbit_memory_monitor), true, ['receive']),
                  Caller ! sampling,
                  loop(File, rabbit_misc:r(<<"/">>, queue, Queue), IntervalMs, now_ms())
          end),
    receive sampling -> ok end.

stop() ->
    Monitor = monitor(process, ?MODULE),
    ?MODULE ! stop,
    receive {'DOWN', Monitor, process, _, _} -> ok end.

now_ms() -> erlang:monotonic_time(millisecond).

loop(File, Queue, IntervalMs, Due) ->
    receive
        stop ->
            file:close(File);
        {trace, _, 'receive', update} ->
            write(File, #{<<"round_at_ms">> => os:system_time(millisecond)}),
            loop(File, Queue, IntervalMs, Due);
        {trace, _, 'receive', _} ->
            loop(File, Queue, IntervalMs, Due)
    after max(Due - now_ms(), 0) ->
        write(File, sample(Queue)),
        loop(File, Queue, IntervalMs, max(Due + IntervalMs, now_ms()))
    end.

write(File, Map) -> ok = file:write(File, [rabbit_json:encode(Map), $\n]).

sample(Name) ->
    {Used, Limit} = vm_memory_monitor:get_memory_use(bytes),
    Sample = #{<<"at_ms">> => os:system_time(millisecond),
               <<"used_bytes">> => Used,
               <<"limit_bytes">> => Limit,
               <<"current_bytes">> => vm_memory_monitor:get_process_memory(current),
               <<"memory_alarm">> => lists:any(fun ({{resource_limit, memory, _}, _}) -> true; (_) -> false end,
                                               rabbit_alarm:get_alarms())},
    case rabbit_amqqueue:lookup(Name) of
        {ok, Queue} -> maps:merge(Sample, of_queue(Queue));
        _           -> Sample
    end.

of_queue(Queue) ->
    [{backing_queue_status, Status}, {messages_unacknowledged, Unacked}, {messages_ready_ram, Ram},
     {messages_unacknowledged_ram, UnackedRam}] =
        rabbit_amqqueue:info(Queue, [backing_queue_status, messages_unacknowledged, messages_ready_ram,
                                     messages_unacknowledged_ram]),
    {delta, _, Delta, _, _} = proplists:get_value(delta, Status),
    Numbers = [{atom_to_binary(Key), number(proplists:get_value(Key, Status))}
               || Key <- [q1, q2, q3, q4, len, target_ram_count, avg_ingress_rate, avg_egress_rate,
                          avg_ack_ingress_rate, avg_ack_egress_rate]],
    maps:merge(maps:from_list(Numbers),
               #{<<"delta">> => Delta, <<"unacked">> => Unacked, <<"ram_msg_count">> => Ram,
                 <<"ram_ack_count">> => UnackedRam}).

number(infinity) -> null;
number(Number)   -> Number.

%% What memory is in use, each part by the way in which it is counted; after a collection of all garbage if so asked.

measure(Collect) ->
    Collect andalso collect(),
    {Resident, Allocated, Total} = {vm_memory_monitor:get_rss_memory(), recon_alloc:memory(allocated),
                                    erlang:memory(total)},
    rabbit_json:encode(#{<<"rss">> => Resident, <<"allocated">> => Allocated, <<"erlang">> => Total,
                         <<"processes">> => erlang:memory(processes), <<"binary">> => erlang:memory(binary),
                         <<"ets">> => erlang:memory(ets), <<"system">> => erlang:memory(system)}).

collect() -> [erlang:garbage_collect(Process) || Process <- erlang:processes()], ok.
