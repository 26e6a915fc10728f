// Interop is a thin client: it reads one command a line from standard input, does it with the official RocketMQ client, and prints
// what happened.
//
// Commands and events are JSON objects. Each command runs in a goroutine of its own; its events carry its "id", and the last one
// is {"id":…,"done":true} with "error" and "code" if it failed. The process ends with its standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("error")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var c command
		if err := json.Unmarshal(commands.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "cannot read the command", commands.Text(), err)
			os.Exit(2)
		}
		go run(&c)
	}
}

// command is one command: what to do and its arguments, each used by some of the commands.
type command struct {
	ID      int64  `json:"id"`
	Do      string `json:"do"`
	Namesrv string `json:"namesrv"`
	Broker  string `json:"broker"`

	Topic             oneOrMore[string] `json:"topic"`
	Queues            int               `json:"queues"`
	Key               string            `json:"key"`
	Tag               string            `json:"tag"`
	Level             oneOrMore[int]    `json:"level"`
	Queue             *int              `json:"queue"`
	Count             int               `json:"count"`
	Millis            int64             `json:"millis"`
	Mode              string            `json:"mode"`
	Properties        map[string]string `json:"properties"`
	Name              string            `json:"name"`
	Group             string            `json:"group"`
	Tags              string            `json:"tags"`
	Orderly           bool              `json:"orderly"`
	Failures          int32             `json:"failures"`
	MaxReconsumeTimes *int32            `json:"maxReconsumeTimes"`
}

// oneOrMore is a list whose JSON may also be its only value.
type oneOrMore[T any] []T

func (list *oneOrMore[T]) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return json.Unmarshal(text, (*[]T)(list))
	}
	*list = make([]T, 1)
	return json.Unmarshal(text, &(*list)[0])
}

type event map[string]any

var printing sync.Mutex

func (c *command) print(e event) {
	e["id"] = c.ID
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

// printMessage prints a message as a consumer got it.
func (c *command) printMessage(m *primitive.MessageExt) {
	c.print(event{
		"topic":          m.Topic,
		"queueId":        m.Queue.QueueId,
		"queueOffset":    m.QueueOffset,
		"key":            m.GetKeys(),
		"tag":            m.GetTags(),
		"bytes":          len(m.Body),
		"crc":            crc32.ChecksumIEEE(m.Body),
		"properties":     m.GetProperties(),
		"reconsumeTimes": m.ReconsumeTimes,
		"born":           m.BornTimestamp,
		"stored":         m.StoreTimestamp,
		"received":       time.Now().UnixMilli(),
		"uniqueKey":      m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex),
		"offsetMsgId":    m.OffsetMsgId,
	})
}

func run(c *command) {
	var err error
	switch c.Do {
	case "createTopic":
		err = createTopic(c)
	case "send":
		err = send(c)
	case "consume":
		err = consume(c)
	case "stop":
		err = stop(c)
	case "pull":
		err = pull(c)
	default:
		err = fmt.Errorf("unknown command %s", c.Do)
	}
	done := event{"done": true}
	if err != nil {
		done["error"], done["code"] = err.Error(), codeOf(err)
	}
	c.print(done)
}

// codeOf is the response code behind a failure, or nil if no broker refused anything. The client has it only in its text.
func codeOf(err error) any {
	var code int
	if _, miss := fmt.Sscanf(err.Error(), "CODE: %d", &code); miss != nil {
		return nil
	}
	return code
}

// instance names a client after the command that started it.
func (c *command) instance() string {
	return fmt.Sprintf("%s-%s-%d", c.Do, c.Namesrv[strings.LastIndex(c.Namesrv, ":")+1:], c.ID)
}

func createTopic(c *command) error {
	tool, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{c.Namesrv})))
	if err != nil {
		return err
	}
	queues := c.Queues
	if queues == 0 {
		queues = 4
	}
	return tool.CreateTopic(context.Background(), admin.WithTopicCreate(c.Topic[0]), admin.WithBrokerAddrCreate(c.Broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues))
}

var (
	producers     = map[string]rocketmq.Producer{}
	producersLock sync.Mutex
)

// producerFor is the one producer that serves all commands for a name server.
func producerFor(namesrv string) (rocketmq.Producer, error) {
	producersLock.Lock()
	defer producersLock.Unlock()
	if p := producers[namesrv]; p != nil {
		return p, nil
	}
	p, err := rocketmq.NewProducer(producer.WithNameServer([]string{namesrv}), producer.WithGroupName("interop"),
		producer.WithInstanceName("producer-"+namesrv[strings.LastIndex(namesrv, ":")+1:]), producer.WithRetry(0),
		producer.WithQueueSelector(&chosenOrNext{next: producer.NewRoundRobinQueueSelector()}))
	if err == nil {
		err = p.Start()
	}
	if err == nil {
		producers[namesrv] = p
	}
	return p, err
}

// chosenOrNext selects the queue a message asks for, else the queues in turn.
type chosenOrNext struct{ next producer.QueueSelector }

func (s *chosenOrNext) Select(m *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.Queue != nil {
		return queues[m.Queue.QueueId%len(queues)]
	}
	return s.next.Select(m, queues, last)
}

// send sends Count messages, or as many as it can in Millis; lists of topics and levels are taken in turn. It prints each result.
func send(c *command) error {
	p, err := producerFor(c.Namesrv)
	if err != nil {
		return err
	}
	ctx := context.Background()
	var answers sync.WaitGroup
	begun := time.Now()
	for i := 0; i == 0 || i < c.Count && (c.Millis == 0 || time.Since(begun).Milliseconds() < c.Millis); i++ {
		m := c.message(i)
		switch c.Mode {
		case "", "sync":
			result, err := p.SendSync(ctx, m)
			c.printSent(m, result, err)
			if err != nil {
				time.Sleep(10 * time.Millisecond) // The broker may be about to come back.
			}
		case "async":
			answers.Add(1)
			err := p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				c.printSent(m, result, err)
				answers.Done()
			}, m)
			if err != nil {
				return err
			}
		case "oneway":
			if err := p.SendOneWay(ctx, m); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unknown mode %s", c.Mode)
		}
	}
	answers.Wait()
	return nil
}

func (c *command) message(i int) *primitive.Message {
	key := c.Key
	if c.Count > 1 {
		key = fmt.Sprintf("%s-%d", key, i)
	}
	m := primitive.NewMessage(c.Topic[i%len(c.Topic)], []byte("body of "+key))
	m.WithKeys([]string{key})
	if c.Tag != "" {
		m.WithTag(c.Tag)
	}
	if len(c.Level) > 0 {
		m.WithDelayTimeLevel(c.Level[i%len(c.Level)])
	}
	for name, value := range c.Properties {
		m.WithProperty(name, value)
	}
	if c.Queue != nil {
		m.Queue = &primitive.MessageQueue{QueueId: *c.Queue}
	}
	return m
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func (c *command) printSent(m *primitive.Message, result *primitive.SendResult, err error) {
	if err != nil {
		c.print(event{"status": "REFUSED", "key": m.GetKeys(), "code": codeOf(err), "error": err.Error()})
		return
	}
	c.print(event{
		"status":      statuses[result.Status],
		"key":         m.GetKeys(),
		"queueId":     result.MessageQueue.QueueId,
		"queueOffset": result.QueueOffset,
		"offsetMsgId": result.OffsetMsgID,
		"uniqueKey":   result.MsgID,
		"crc":         crc32.ChecksumIEEE(m.Body),
	})
}

var (
	running     = map[string]rocketmq.PushConsumer{}
	runningLock sync.Mutex
)

// selector is the selection of the tags a command asks for.
func (c *command) selector() consumer.MessageSelector {
	tags := c.Tags
	if tags == "" {
		tags = "*"
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
}

// consume starts a push consumer, which prints each message it gets until "stop" names it. A message fails as long as it was
// retried fewer than Failures times.
func consume(c *command) error {
	options := []consumer.Option{
		consumer.WithNameServer([]string{c.Namesrv}), consumer.WithGroupName(c.Group), consumer.WithInstance(c.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumeMessageBatchMaxSize(1),
		consumer.WithConsumerOrder(c.Orderly),
	}
	if c.MaxReconsumeTimes != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*c.MaxReconsumeTimes))
	}
	pushed, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	for _, topic := range c.Topic {
		err := pushed.Subscribe(topic, c.selector(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				c.printMessage(m)
			}
			if messages[0].ReconsumeTimes < c.Failures {
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		})
		if err != nil {
			return err
		}
	}
	if err := pushed.Start(); err != nil {
		return err
	}
	runningLock.Lock()
	defer runningLock.Unlock()
	running[c.Name] = pushed
	return nil
}

// stop stops a push consumer, if it runs.
func stop(c *command) error {
	runningLock.Lock()
	pushed := running[c.Name]
	delete(running, c.Name)
	runningLock.Unlock()
	if pushed == nil {
		return nil
	}
	return pushed.Shutdown()
}

// pull prints everything in a topic now, queue by queue.
func pull(c *command) error {
	topic := c.Topic[0]
	pulling, err := rocketmq.NewPullConsumer(consumer.WithNameServer([]string{c.Namesrv}), consumer.WithGroupName(c.Group),
		consumer.WithInstance(c.instance()))
	if err != nil {
		return err
	}
	if err := pulling.Subscribe(topic, c.selector()); err != nil {
		return err
	}
	if err := pulling.Start(); err != nil {
		return err
	}
	defer pulling.Shutdown()
	queues, err := pulling.GetTopicRouteInfo(topic)
	if err != nil {
		return err
	}
	for _, queue := range queues {
		// The client has no call for the end of a queue, and a pull at the end would wait there.
		end, err := pulling.OffsetForTimestamp(queue, time.Now().Add(time.Hour).UnixMilli())
		if err != nil {
			return err
		}
		for offset := int64(0); offset < end; {
			result, err := pulling.PullFrom(context.Background(), queue, offset, 32)
			if err != nil {
				return err
			}
			for _, m := range result.GetMessageExts() {
				c.printMessage(m)
			}
			if result.NextBeginOffset <= offset {
				return fmt.Errorf("%s does not move on from %d", queue, offset)
			}
			offset = result.NextBeginOffset
		}
	}
	return nil
}
